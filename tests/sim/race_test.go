//go:build race

package sim

// usualSeeds is small, because a seed costs several times as much with the race detector.
const usualSeeds = 30
