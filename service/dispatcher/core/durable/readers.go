package durable

import (
	"iter"
	"slices"

	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
)

// maxBlock bounds the jobs of a block, and so what a change of the index moves.
const maxBlock = 512

// readerBlocks are lists of jobs. The jobs ascend over all lists, and no list is empty.
type readerBlocks [][]*pecanv1.PastJob

// readerIndex has the jobs in the histories of all graphs by their cache keys. Those that began an epoch last are the last ones.
type readerIndex struct {
	// few has the jobs of a key in one block, as nearly all keys need. many has those in more blocks.
	few  map[string][]*pecanv1.PastJob
	many map[string]readerBlocks
}

func newReaderIndex() readerIndex {
	return readerIndex{few: map[string][]*pecanv1.PastJob{}, many: map[string]readerBlocks{}}
}

// newest returns the jobs with a key, the newest first.
func (x readerIndex) newest(key string) iter.Seq[*pecanv1.PastJob] {
	return func(yield func(*pecanv1.PastJob) bool) {
		for _, block := range slices.Backward(x.blocks(key)) {
			for _, job := range slices.Backward(block) {
				if !yield(job) {
					return
				}
			}
		}
	}
}

// note notes the jobs of a history after a change.
func (x readerIndex) note(before, after []*pecanv1.PastJob) {
	for _, job := range before {
		if !slices.Contains(after, job) {
			for _, key := range job.CacheKeys {
				x.set(key, x.blocks(key).without(job))
			}
		}
	}
	for _, job := range after {
		if !slices.Contains(before, job) {
			for _, key := range job.CacheKeys {
				x.set(key, x.blocks(key).with(job))
			}
		}
	}
}

func (x readerIndex) blocks(key string) readerBlocks {
	if few := x.few[key]; few != nil {
		return readerBlocks{few}
	}
	return x.many[key]
}

func (x readerIndex) set(key string, blocks readerBlocks) {
	if len(blocks) == 1 {
		x.few[key] = blocks[0]
		delete(x.many, key)
		return
	}
	delete(x.few, key)
	if x.many[key] = blocks; len(blocks) == 0 {
		delete(x.many, key)
	}
}

// find returns the first place at which a job can be. If all other jobs are before it, that is the end of the last block.
func (b readerBlocks) find(job *pecanv1.PastJob) (block, at int) {
	block, _ = slices.BinarySearchFunc(b, job, func(jobs []*pecanv1.PastJob, job *pecanv1.PastJob) int {
		return pecanv1.CompareJobs(jobs[len(jobs)-1], job)
	})
	block = min(block, len(b)-1)
	at, _ = slices.BinarySearchFunc(b[block], job, pecanv1.CompareJobs)
	return block, at
}

func (b readerBlocks) with(job *pecanv1.PastJob) readerBlocks {
	if len(b) == 0 {
		return readerBlocks{{job}}
	}
	block, at := b.find(job)
	jobs := slices.Insert(b[block], at, job)
	b[block] = jobs
	if half := len(jobs) / 2; len(jobs) > maxBlock {
		b[block] = slices.Clone(jobs[:half])
		b = slices.Insert(b, block+1, slices.Clone(jobs[half:]))
	}
	return b
}

// without removes a job. The block joins the next one if both are small.
func (b readerBlocks) without(job *pecanv1.PastJob) readerBlocks {
	block, at := b.find(job)
	// Jobs of other graphs may be equal.
	for ; b[block][at] != job; at++ {
		if at == len(b[block])-1 {
			block, at = block+1, -1
		}
	}
	b[block] = slices.Delete(b[block], at, at+1)
	if next := block + 1; next < len(b) && len(b[block])+len(b[next]) <= maxBlock/2 {
		b[block] = append(b[block], b[next]...)
		return slices.Delete(b, next, next+1)
	}
	if len(b[block]) == 0 {
		return slices.Delete(b, block, block+1)
	}
	return b
}
