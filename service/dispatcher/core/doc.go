// Package core is the dispatcher without the world: a state machine that has no clock, no network, no disk, no
// randomness, and in which nothing depends on the order of a map. Whatever it needs of these comes in with an input.
//
// There are two kinds of state. Durable state (State) is what records add up to, and Apply is the only thing that changes it.
// Soft state is what workers and clients tell again when they come back: addresses, heartbeats, loads.
//
// Decide takes an input and the time and gives a Result: records, effects, a reply. The records are already applied to the
// core's own state, so that the next decision builds on them; they become true for the world only when the
// caller has made them durable. Until then it must hold back the reply and the effects, and it must release
// both in the order of decisions. If the caller dies in between, the records are as if they had never been: nobody
// has seen their effects. Applying all durable records to an empty State gives the state of the core that made them.
//
// What a client opens ahead of need it may never read. Until it says that it does (AdoptEpoch) the epoch has one stream on each
// worker at most, in a slot that nothing else has, and the worker makes one element of it. That mark is durable, and so is the number
// of each assignment of a stream to a consumer, by which a late or repeated word of an earlier one is known.
//
// What is promised for a stream's consumers. A stream of a shared job has one consumer at a time. When a consumer gives a
// stream up (ReleaseStream) the next one starts exactly where it stopped. When a consumer dies, or closes its pass without giving
// its streams up, only what it acknowledged to the worker is known, and that a moment late: in the modes exactly-once and
// deterministic the next consumer starts at the last index that the dead one is known to have acknowledged, so what was on
// its way to the dead trainer is given again and nothing is left out; at-least-once goes back to where the dead consumer started; at-most-once goes on
// after everything that can have been sent.
package core
