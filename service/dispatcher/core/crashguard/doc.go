// Package crashguard decides whether a stream kills the workers that run it.
//
// A worker that dies may have been killed by an element, or by anything else. The guard narrows the cause down in steps:
//
//  1. After the first death, the next worker marks the elements that it is about to compute (MarkElements).
//  2. The mark at the second death is a range. In that range the third worker marks one element at a time, and computes
//     no suspicious element of another stream meanwhile.
//  3. After the third death in the range, the element is the cause if native code ended all three processes. A worker
//     whose code aborts reports that (ReportCrash). A worker that is killed from outside cannot report anything, so such
//     deaths must repeat more often.
//
// A stream that waits, or that progressed further each time, is not blamed. Steps that read ahead compute elements beyond the
// mark, also while the stream waits. After two crashes the stream therefore runs serially: without read-ahead. Design note
// 0009 has the argument.
//
// count.go counts deaths when a LeaseLost record is applied. suspect.go finds the range after a death. blame.go has the
// limits, and writes the job's error. Keep all functions pure: the durable state and the core use the same
// counts, so replay and decision must not differ.
package crashguard
