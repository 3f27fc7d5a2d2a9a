// Package cacheable says which steps of a dataset may be cached, and gives caches their keys.
//
// It promises: if a step may be cached, elements that are read from the cache are those that the pipeline would
// compute, in their order. Otherwise the answer is the reason.
//
// rules.go has the rules for the elements of a step, and for its place in the pipeline. key.go hashes what decides the
// elements.
//
// Do not decide here whether a cache pays: policies/autocache does that, with measurements.
package cacheable
