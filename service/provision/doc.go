// Package provision starts and stops remote workers. The caller decides how many there should be and which ones leave;
// a Provider makes it so.
//
//	provision.go   Provider, State, and Open, which reads the provider from one word
//	plan.go        what has to change, as a pure function of what exists and what is wanted
//	static.go      workers that somebody else starts: whoever registered
//	local.go       workers as child processes of the dispatcher
//	kubernetes.go  workers as pods of a Deployment or StatefulSet; kubeapi.go makes the calls
//
// Nothing here waits for a worker. Reconcile starts what is missing and returns; State says what has become of earlier
// calls. A worker that the provider cannot give counts as Stuck, so that decisions count only on the others.
//
// Reconcile is idempotent and stores nothing outside of the provider. A dispatcher that restarts calls Observe, adopts
// State.Desired and State.Leaving, and continues.
//
// A ready worker is removed only if the caller named it. A provider that can remove its workers in one order only,
// such as a StatefulSet, says so in State.Ordered.
//
// Do not decide here how many workers there are: service/dispatcher/core/fleet does. Do not remove a ready worker that the
// caller did not name.
package provision
