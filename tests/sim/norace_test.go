//go:build !race

package sim

// usualSeeds is the number of seeds in every run of the tests.
const usualSeeds = 40
