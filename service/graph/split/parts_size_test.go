package split

import "testing"

func TestPartsAreNeitherTooManyNorTooLarge(t *testing.T) {
	numbers, files, extents := Edge{block: 1}, Edge{block: 1, files: true}, Edge{block: 1, files: true, extents: true}
	for name, c := range map[string]struct {
		of   Edge
		rows int64
		want int64
	}{
		"no numbers":                  {numbers, 0, 1},
		"few numbers":                 {numbers, 100, 1},
		"some numbers":                {numbers, 1000, 8},
		"many numbers":                {numbers, 1 << 20, 1024},
		"very many numbers":           {numbers, 1 << 30, 1 << 18},
		"batches of 32":               {Edge{block: 32}, 1 << 20, 32},
		"batches of 100":              {Edge{block: 100}, 1 << 20, 11},
		"batches of 8, a short range": {Edge{block: 8}, 300, 1},
		"few files":                   {files, 8, 1},
		"many files":                  {files, 4096, 1},
		"very many files":             {files, 100_000, 32},
		"few extents":                 {extents, 60, 1},
		"some extents":                {extents, 256, 4},
		"enough extents":              {extents, 600, 8},
		"many extents":                {extents, 4100, 16},
	} {
		got := blocksOfPart(c.rows, c.of)
		if parts := c.rows / (got * c.of.block); got != c.want || parts > mostParts {
			t.Errorf("%s: %d blocks in %d parts, want %d", name, got, parts, c.want)
		}
	}
}
