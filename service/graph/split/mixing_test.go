package split

import (
	"cmp"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
)

// mixing measures how well an epoch mixes the source, in windows of 256 outputs.
type mixing struct {
	// spread is the standard deviation of the source positions in a window, as a part of that of a uniform permutation.
	spread float64
	// displacement is the mean distance between the positions of an element in the source and in the output, as a part
	// of the source.
	displacement float64
	// files is the number of files in a window.
	files float64
}

func measureMixing(output []int64, perFile int64) (m mixing) {
	const window = 256
	n := float64(len(output))
	var spreads, files []float64
	for at := 0; at+window <= len(output); at += window {
		sum, squares, seen := 0.0, 0.0, map[int64]bool{}
		for _, x := range output[at : at+window] {
			sum, squares = sum+float64(x), squares+float64(x)*float64(x)
			seen[x/perFile] = true
		}
		mean := sum / window
		spreads, files = append(spreads, math.Sqrt(squares/window-mean*mean)), append(files, float64(len(seen)))
	}
	for i, x := range output {
		m.displacement += math.Abs(float64(x)-float64(i)) / n / n
	}
	slices.Sort(spreads)
	slices.Sort(files)
	m.spread, m.files = spreads[len(spreads)/2]/(n/math.Sqrt(12)), files[len(files)/2]
	return m
}

// shuffled returns the elements in the order of a shuffle with a buffer.
func shuffled(elements []int64, buffer int, rng *rand.Rand) []int64 {
	held, out := slices.Clone(elements[:min(buffer, len(elements))]), make([]int64, 0, len(elements))
	for next := len(held); len(held) > 0; next++ {
		i := rng.IntN(len(held))
		out = append(out, held[i])
		if next < len(elements) {
			held[i] = elements[next]
		} else {
			held[i] = held[len(held)-1]
			held = held[:len(held)-1]
		}
	}
	return out
}

// readInGroups reads G streams in turn. A stream that ends is followed by the next one.
func readInGroups(streams [][]int64, group int) (out []int64) {
	open := slices.Clone(streams[:min(group, len(streams))])
	for next := len(open); len(open) > 0; {
		for i := 0; i < len(open); i++ {
			out = append(out, open[i][0])
			if open[i] = open[i][1:]; len(open[i]) > 0 {
				continue
			}
			if next < len(streams) {
				open[i], next = streams[next], next+1
			} else {
				open = slices.Delete(open, i, i+1)
				i--
			}
		}
	}
	return out
}

// Streams, their order and the parts of the buffers together mix at least as well as a local run with the whole buffer. A
// worker of two slots has all streams of a group open, so the workers do not matter here.
func TestGroupsMixAtLeastAsWellAsALocalRun(t *testing.T) {
	const files, perFile, elements = 1024, 125, 1024 * 125
	source := make([]int64, elements)
	for i := range source {
		source[i] = int64(i)
	}
	for name, c := range map[string]struct {
		buffer  int64
		byFiles bool
		counted int64
	}{
		"files and a small buffer": {2_000, true, elements}, "files and a large buffer": {16_000, true, elements}, "elements": {2_000, false, elements},
		"files of unknown length": {2_000, true, 0},
	} {
		t.Run(name, func(t *testing.T) {
			rng := rand.New(rand.NewPCG(5, 6))
			load, block := workload{splits: elements, elements: elements, seconds: 400}, int64(1)
			if c.byFiles {
				block = perFile
				load.splits, load.elements, load.files, load.buffer, load.shuffled = files, files, true, c.buffer, count{n: c.counted}
			}
			n, _ := load.streams()
			plan := &pecanv1.Plan{NumStreams: int32(n), Group: int32(load.group(n))}
			open := cmp.Or(int64(plan.Group), n)
			streams := sharesOf(load.splits, plan, true, 7, 1)
			for s, blocks := range streams {
				var share []int64
				for _, b := range blocks {
					share = append(share, source[b*block:(b+1)*block]...)
				}
				streams[s] = shuffled(share, int((c.buffer-1)/open+1), rng)
			}
			output := readInGroups(streams, int(open))
			local, groups := measureMixing(shuffled(source, int(c.buffer), rng), perFile), measureMixing(output, perFile)
			t.Logf("S = %d, G = %d: local %.2f, groups %.2f (spread, displacement, files)", n, plan.Group, local, groups)
			// Eight streams of half a source each have 1 % fewer files in a window.
			if groups.spread < local.spread || groups.displacement < local.displacement || groups.files < 0.98*local.files {
				t.Errorf("S = %d: groups mix with %+v, a local run with %+v", n, groups, local)
			}
			slices.Sort(output)
			if !slices.Equal(output, source) {
				t.Error("elements are missing or twice")
			}
		})
	}
}
