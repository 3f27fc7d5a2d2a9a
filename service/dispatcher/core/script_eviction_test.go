package core_test

import (
	"fmt"
	"strings"

	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
	"github.com/pecan-ml/pecan/service/dispatcher/core"
)

func (s *script) cacheInput(command string, a args) any {
	from := func(m *pecanv1.WorkerMessage) any {
		return core.FromWorker{Session: core.SessionID(a.number("session")), Message: m}
	}
	switch command {
	case "written":
		return from(&pecanv1.WorkerMessage{Kind: &pecanv1.WorkerMessage_CacheSegmentWritten{CacheSegmentWritten: &pecanv1.CacheSegmentWritten{Segment: segment(a)}}})
	case "ask":
		return from(&pecanv1.WorkerMessage{Kind: &pecanv1.WorkerMessage_AskCachePart{AskCachePart: &pecanv1.AskCachePart{
			Id: streamID(a["stream"]), Lease: a.number("lease"), Key: a["key"], Part: uint32(a.number("part")), NeverWaits: a.has("never_waits"),
		}}})
	case "invalid":
		return from(&pecanv1.WorkerMessage{Kind: &pecanv1.WorkerMessage_CacheSegmentInvalid{CacheSegmentInvalid: &pecanv1.CacheSegmentInvalid{Segment: segment(a), Why: a["why"]}}})
	case "files":
		return from(&pecanv1.WorkerMessage{Kind: &pecanv1.WorkerMessage_CacheFiles{CacheFiles: &pecanv1.CacheFiles{Names: a.list("names")}}})
	case "change":
		change := pecanv1.ChangeCacheRequest_Change_value[strings.ToUpper(a["to"])]
		return &pecanv1.ChangeCacheRequest{Key: a["key"], Change: pecanv1.ChangeCacheRequest_Change(change)}
	}
	return nil
}

// segment reads key= part= of= name= bytes= elements=.
func segment(a args) *pecanv1.CacheSegment {
	return &pecanv1.CacheSegment{
		Key: a["key"], Part: uint32(a.number("part")), Parts: uint32(a.number("of")), Name: a["name"], Bytes: int64(a.number("bytes")), Source: a["source"],
		Elements: a.number("elements"),
	}
}

// inOrder shows the order of a decision on a cache; empty for the registered one.
func inOrder(d *pecanv1.CacheDecision) string {
	if len(d.Order) == 0 {
		return ""
	}
	return fmt.Sprintf(" in %v", d.Order)
}

// kept says how many measured epochs a record keeps for later jobs.
func kept(r *pecanv1.CacheDecided) string {
	if len(r.Epochs) == 0 {
		return ""
	}
	return fmt.Sprintf(", keeps %d epochs", len(r.Epochs))
}

func showCacheRecord(record *pecanv1.Record) string {
	switch k := record.Kind.(type) {
	case *pecanv1.Record_CacheSegmentAdded:
		return fmt.Sprintf("record segment of %s/%d is %s", k.CacheSegmentAdded.Segment.Key, k.CacheSegmentAdded.Segment.Part, k.CacheSegmentAdded.Segment.Name)
	case *pecanv1.Record_CacheCommitted:
		return "record cache committed " + k.CacheCommitted.Key
	case *pecanv1.Record_CacheSegmentDropped:
		return fmt.Sprintf("record segment of %s/%d dropped, %s (%s)", k.CacheSegmentDropped.Key, k.CacheSegmentDropped.Part, k.CacheSegmentDropped.Name, k.CacheSegmentDropped.Why)
	case *pecanv1.Record_CacheDecided:
		d := k.CacheDecided.Decision
		return fmt.Sprintf("record cache of %s from epoch %d is %q, open %v (%s)", k.CacheDecided.JobId, d.Epoch, d.Node, k.CacheDecided.OpenEpochs, d.Why) + inOrder(d) + kept(k.CacheDecided)
	case *pecanv1.Record_CacheEvicted:
		return fmt.Sprintf("record cache evicted %s (%s)", k.CacheEvicted.Key, k.CacheEvicted.Why)
	case *pecanv1.Record_CachePinned:
		return fmt.Sprintf("record cache %s pinned=%v", k.CachePinned.Key, k.CachePinned.Pinned)
	case *pecanv1.Record_CachesUsed:
		return fmt.Sprintf("record caches used in %.4g s %v", k.CachesUsed.Seconds, k.CachesUsed.Keys)
	case *pecanv1.Record_CacheMeasured:
		line := fmt.Sprintf("record cache %s saves %.4g s", k.CacheMeasured.Key, k.CacheMeasured.ComputeS)
		if k.CacheMeasured.BenefitS != nil {
			line += fmt.Sprintf(", %.4g s of a trainer", *k.CacheMeasured.BenefitS)
		}
		return line
	}
	return fmt.Sprintf("record %v", record)
}

// caches shows what an operator sees.
func (s *script) caches() []string {
	answer, err := s.core.Caches(&pecanv1.CachesRequest{})
	if err != nil {
		s.t.Fatal(err)
	}
	lines := []string{fmt.Sprintf("quota %d", answer.Quota)}
	for _, k := range answer.Caches {
		lines = append(lines, fmt.Sprintf("cache %s of %s %s pinned=%v in_use=%v %d of %d, %d bytes, saves %.4g s, unused for %.4g s, jobs %v",
			k.Key, k.Tenant, k.State, k.Pinned, k.InUse, k.Segments, k.Streams, k.Bytes, k.SavesS, k.UnusedS, k.Jobs))
	}
	return lines
}

func partAnswer(answer *pecanv1.CachePart) string {
	switch {
	case answer.Segment != nil:
		return "read " + answer.Segment.Name
	case answer.Wait:
		return "wait"
	}
	return "compute"
}
