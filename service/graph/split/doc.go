// Package split decides how a dataset is divided into streams, and cuts it there.
//
// It promises: the streams of one epoch together have every element of a local run exactly once, in the batches of a
// local run. If Pecan does not understand a step well enough, the plan has one stream and gives the reason. A plan is a
// pure function of graph, options and Env.
//
// planner.go has the Planner, which holds the analysed graph. plan.go makes a plan. reshape.go and repeat.go prepare the
// tree of steps. division.go has the types of a cut and a division. divide.go finds the edges of the cut, and batches.go
// keeps batches whole. choose.go chooses a division; streams.go and workload.go choose the number of streams. groups.go
// says which share a stream reads. parts.go divides the source by parts, and late.go moves shuffles after cached steps.
// record.go writes a division into the plan and finds it again. hint.go, cache.go, files.go and resume.go plan the rest;
// reasons.go writes the reasons. cut.go, cutrange.go and rows.go insert the cut into the graph of one stream.
//
// The head of a division is all steps upstream of the cut, and the tail is all steps downstream of it. Every stream
// repeats the head. The work of the tail is divided among the streams.
//
// A change of the plan, or of what cut.go writes, changes the elements of running jobs. Saved positions, caches and journals
// name the plan by its hash. golden_test.go pins hashes and graphs. Rewrite its table only if the commit says why.
//
// The package has more files and lines than others because all rules of the plan read and change one Planner and one
// Division. A rule in another package would need the fields of both, and the order of the rules decides the plan. Do not
// look at workers here: a plan must not depend on the connected workers.
package split
