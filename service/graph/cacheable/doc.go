// Package cacheable says which steps of a dataset may be cached, and gives caches their keys.
//
// It promises: if a step may be cached, elements that are read from the cache are those that the pipeline would
// compute, in their order. Otherwise the answer is the reason.
//
// candidates.go finds the candidates: the marks of the user, and steps that no user marked. It has the rules for the place
// of a step in the pipeline. rules.go has the rules for its elements, and files.go for the files that they are read from.
// variants.go says which ragged and sparse values can be written, and parts.go which steps keep the parts of a source
// apart. select.go leaves out what is too much. key.go hashes what decides the elements.
//
// Do not decide here whether a cache pays: policies/autocache does that, with measurements. Do not look at workers
// here, because a plan must not depend on them.
package cacheable
