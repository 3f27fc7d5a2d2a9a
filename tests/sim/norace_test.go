//go:build !race

package sim

// usualSeeds are those of every run of the tests.
const usualSeeds = 200
