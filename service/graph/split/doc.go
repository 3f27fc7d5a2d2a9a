// Package split decides how a dataset is divided into streams, and cuts it there.
//
// It promises: over all streams of one epoch every element of a local pass is there once, in batches as local execution
// gives them. Where a step is not understood well enough, the plan has one stream and says why. A plan is a pure
// function of graph, options and Env.
//
// plan.go makes a plan. reshape.go and repeat.go prepare the tree of steps; divide.go finds the edges of the
// cut; batches.go keeps batches whole; choose.go and streams.go pick a division and the number of streams;
// record.go writes a division into the plan and finds it again; hint.go, cache.go, cachekey.go, files.go and
// resume.go plan the rest; reasons.go words the reasons. cut.go, cutrange.go and share.go put the cut into the
// graph of one stream.
//
// The package has more files than others because each rule of the plan has its own. Do not look at workers here: a plan
// must not depend on who happens to be there.
package split
