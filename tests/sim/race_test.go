//go:build race

package sim

// usualSeeds are few: the race detector makes a seed cost several times as much.
const usualSeeds = 30
