// Package placing decides how many workers of each kind serve a job. It translates measurements into the input of the
// policy autoplacement.Search, and its decision into a message.
//
// A Placer keeps the search of each job. The search is not durable: a dispatcher that restarts continues at the recorded
// decision with a new search. Equal requests in equal order give equal decisions.
//
// Files: placer.go keeps the searches, translate.go makes the policy's input, event.go describes a decision for the log.
//
// Do not keep anything here that a restarted dispatcher needs, and do not read a clock: a request has all measurements.
package placing
