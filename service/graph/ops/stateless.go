package ops

// A keyed step draws its random values from a key and the index of the element. Its stateful random ops are
// replaced by stateless ones, which have no generator that advances from call to call. So its calls may run
// in parallel and start at any element, and the values stay the same. docs/design/0007-keyed-randomness.md
// gives the reasons.

// Stateless is the stateless form of a random op.
type Stateless struct {
	Op string
	// Dtype and Shape are the stateful op's attributes that become the stateless op's dtype and Tshape. They
	// are "" if the stateless op lacks that attribute.
	Dtype, Shape string
}

// StatelessOps maps each stateful random op to its stateless form, if it has one.
var StatelessOps = map[string]Stateless{
	"RandomUniform":        {Op: "StatelessRandomUniformV2", Dtype: "dtype", Shape: "T"},
	"RandomStandardNormal": {Op: "StatelessRandomNormalV2", Dtype: "dtype", Shape: "T"},
	"TruncatedNormal":      {Op: "StatelessTruncatedNormalV2", Dtype: "dtype", Shape: "T"},
	"RandomUniformInt":     {Op: "StatelessRandomUniformIntV2", Dtype: "Tout", Shape: "T"},
	"RandomShuffle":        {Op: "StatelessShuffle"},
	"Multinomial":          {Op: Multinomial},
}

// Multinomial takes a seed of two numbers. The other ops take a key and a counter.
const Multinomial = "StatelessMultinomial"
