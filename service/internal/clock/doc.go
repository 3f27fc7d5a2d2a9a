// Package clock is the only source of time in the service: a monotonic clock, and a fake one for tests.
//
// clock.go has the Clock and the system's clock. fake.go has the clock that a test moves.
//
// A Clock counts from its own start. It has no wall time, because a decision must not depend on a clock that somebody may
// set.
package clock
