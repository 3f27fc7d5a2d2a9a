package split

import (
	"strings"
	"testing"

	"github.com/pecan-ml/pecan/service/graph/analysis"
)

func TestTheNumberOfStreamsFollowsTheData(t *testing.T) {
	for name, c := range map[string]struct {
		load workload
		want int64
		why  string
	}{
		"work of an earlier job":  {workload{splits: 1 << 20, elements: 1 << 20, seconds: 100}, 250, "100 s of CPU"},
		"little work":             {workload{splits: 1 << 20, elements: 1 << 20, seconds: 1}, 16, "at least this many; an earlier job spent 1 s"},
		"no more than the splits": {workload{splits: 40, elements: 40, seconds: 1000}, 40, "each of the 40 splits"},
		"the size of files":       {workload{splits: 1024, elements: 1024, files: true, fileBytes: 6400 << 20}, 200, "the files have 6400 MB"},
		"files of unknown size":   {workload{splits: 1024, elements: 1024, files: true}, 1024, "each of the 1024 splits"},
		"heavy elements":          {workload{splits: 50_000, elements: 50_000, weight: analysis.WeightHeavy}, 390, "128 of them"},
		"light elements":          {workload{splits: 1 << 20, elements: 1 << 20, weight: analysis.WeightLight}, 64, "16384 of them"},
		"elements without work":   {workload{splits: 1 << 30, elements: 1 << 30}, 16384, "65536 of them"},
		"the limit":               {workload{splits: 1 << 30, elements: 1 << 30, seconds: 1e9}, 1 << 16, "no dataset gets more than 65536"},
		"a shuffle over files":    {workload{splits: 1024, elements: 1024, files: true, seconds: 1000, buffer: 2000, shuffled: count{n: 128_000}}, 127, "the shuffle holds 2000 of 128000"},
		"a shuffle that nobody has counted": {workload{splits: 1024, elements: 1024, files: true, fileBytes: 1 << 40, buffer: 2000}, 16,
			"not known before a job has counted them"},
		"a shuffle of sampled records": {workload{splits: 1024, elements: 1024, files: true, fileBytes: 1 << 40, buffer: 2000, shuffled: count{128_000, true}}, 127,
			"the shuffle holds 2000 of about 128000 elements (estimated from the sizes of sampled records)"},
		"a shuffle whose buffer has no bound": {workload{splits: 1024, elements: 1024, files: true, seconds: 1000, buffer: 1 << 61, shuffled: count{n: 128_000}}, 16,
			"at least this many; the shuffle holds 2305843009213693952 of 128000"},
		"a shuffle that was counted, and rows of sampled records": {workload{splits: 1024, elements: 1024, files: true, seconds: 1000, buffer: 2000, shuffled: count{n: 128_000}, batch: 64, rows: count{1 << 20, true}}, 127,
			"the shuffle holds 2000 of 128000 elements;"},
		"a batch larger than the epoch": {workload{splits: 1024, elements: 1024, files: true, seconds: 500, batch: 1 << 61, rows: count{n: 51_200}}, 50,
			"an epoch has 51200 rows"},
		"long streams with few batches": {workload{splits: 1024, elements: 1024, files: true, fileBytes: 150 << 30, batch: 8192, rows: count{n: 1_281_167}}, 150,
			"an epoch has 1281167 rows"},
		"short batches": {workload{splits: 1024, elements: 1024, files: true, seconds: 1000, batch: 64, rows: count{n: 51_200}}, 100,
			"an epoch has 51200 rows, and a stream has at least 8 batches of 64"},
		"batches of rows that nobody has counted": {workload{splits: 1024, elements: 1024, files: true, seconds: 1000, batch: 64}, 1024, "each of the 1024 splits"},
		"elements that all streams pass":          {workload{splits: 1 << 20, elements: 1 << 20, seconds: 1000, passes: true}, 95, "every stream reads all 1048576 elements"},
		"a cache":                                 {workload{splits: 1 << 20, elements: 1 << 20, seconds: 1e6, cached: true}, 4096, "a cache has at most 4096"},
		"a step that counts":                      {workload{splits: 1 << 20, elements: 1 << 20, seconds: 1000, private: "counts"}, 16, "counts keeps a state"},
		"a step that counts, and little work":     {workload{splits: 1 << 20, elements: 1 << 20, seconds: 1, private: "counts"}, 16, "at least this many; an earlier job spent 1 s"},
		"a step that counts, and few elements": {workload{splits: 2000, elements: 2000, weight: analysis.WeightHeavy, private: "counts"}, 16,
			"at least this many; the source has 2000 elements"},
		"a step that counts, and a shuffle that nobody has counted": {workload{splits: 1024, elements: 1024, files: true, buffer: 2000, private: "counts"}, 16,
			"not known before a job has counted them"},
		"a source of unknown length": {workload{splits: unlimitedSplits, seconds: 1000}, 16, "its length is not known"},
	} {
		t.Run(name, func(t *testing.T) {
			if n, why := c.load.streams(); n != c.want || !strings.Contains(why, c.why) {
				t.Errorf("%d streams, want %d: %s", n, c.want, why)
			}
		})
	}
}
