package durable

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
)

// The index has the same jobs as a list that is sorted again after each change. Jobs of different graphs may be equal.
func TestTheIndexOfReadersIsSorted(t *testing.T) {
	for seed := range uint64(20) {
		rng, index := rand.New(rand.NewPCG(seed, 0)), newReaderIndex()
		var jobs []*pecanv1.PastJob
		most, blocks := 100+rng.IntN(3*maxBlock), 0
		for step := range 6 * maxBlock {
			// The list grows to its bound, stays there, and ends empty.
			if grow := step < most || step < 4*maxBlock && rng.IntN(2) == 0; grow || len(jobs) == 0 {
				job := &pecanv1.PastJob{JobId: fmt.Sprint("j", rng.IntN(3)), LastS: rng.Int64N(1 + int64(most)/int64(1+rng.IntN(9))), CacheKeys: []string{"k"}}
				jobs = append(jobs, job)
				index.note(nil, []*pecanv1.PastJob{job})
			} else {
				at := rng.IntN(len(jobs))
				index.note([]*pecanv1.PastJob{jobs[at]}, nil)
				jobs = slices.Delete(jobs, at, at+1)
			}
			blocks = max(blocks, len(index.blocks("k")))
			if step%97 != 0 {
				continue
			}
			found := slices.Collect(index.newest("k"))
			slices.Reverse(found)
			if len(found) != len(jobs) || !slices.IsSortedFunc(found, pecanv1.CompareJobs) {
				t.Fatalf("seed %d, step %d: the index has %d jobs of %d, or they are not sorted", seed, step, len(found), len(jobs))
			}
			for _, job := range jobs {
				if !slices.Contains(found, job) {
					t.Fatalf("seed %d, step %d: the index does not have %v", seed, step, job)
				}
			}
			for _, block := range index.blocks("k") {
				if len(block) == 0 || len(block) > maxBlock {
					t.Fatalf("seed %d, step %d: a block has %d jobs", seed, step, len(block))
				}
			}
		}
		if most > maxBlock && blocks < 2 {
			t.Errorf("seed %d: %d jobs were in one block", seed, most)
		}
		for _, job := range jobs {
			index.note([]*pecanv1.PastJob{job}, nil)
		}
		if len(index.few)+len(index.many) > 0 {
			t.Errorf("seed %d: the index has a key without jobs", seed)
		}
	}
}
