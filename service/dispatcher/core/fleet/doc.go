// Package fleet decides how many remote workers a provider is asked for, and which ones leave.
//
// Its owner reports what the provider answers (Answered), and calls Decide with what the jobs want. The result is a Request
// for the provider, if it has changed. The owner tells each worker of Request.Leaving to leave (Leaves) before the provider
// gets the request. The fleet asks for more workers at once. It asks for fewer when they have sufficed for Limits.Idle,
// because workers take long to start, and a job reads nothing between two epochs.
//
// A worker that was asked to leave stays in Request.Leaving until the provider no longer has it. Nothing is stored here:
// after a restart, the first answer of the provider says how many workers it was asked for and which ones leave.
//
// fleet.go decides the number, and victims.go chooses the workers that leave.
//
// The package knows numbers and addresses; it must not know jobs, sessions, time or providers. Equal calls give equal
// results.
package fleet
