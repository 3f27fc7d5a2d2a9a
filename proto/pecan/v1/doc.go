// Package pecanv1 is what Pecan's processes say to each other and what the dispatcher keeps: the generated messages and services of the
// .proto files beside it, and the few methods that more than one room needs on them.
package pecanv1
