package ops

// A keyed step draws its random values from a key and the number of the element, not from a generator that goes on from call
// to call: each stateful random op becomes its stateless twin. So its calls may run side by side and begin at any element, and
// the values are the same. docs/design/0007 has the reasons.

// Stateless is the stateless form of a random op.
type Stateless struct {
	Op string
	// Dtype and shape are the names of the stateful op's attributes for what the twin calls dtype and Tshape; "" for none.
	Dtype, Shape string
}

// StatelessOps are the stateless forms of the random ops that have one.
var StatelessOps = map[string]Stateless{
	"RandomUniform":        {Op: "StatelessRandomUniformV2", Dtype: "dtype", Shape: "T"},
	"RandomStandardNormal": {Op: "StatelessRandomNormalV2", Dtype: "dtype", Shape: "T"},
	"TruncatedNormal":      {Op: "StatelessTruncatedNormalV2", Dtype: "dtype", Shape: "T"},
	"RandomUniformInt":     {Op: "StatelessRandomUniformIntV2", Dtype: "Tout", Shape: "T"},
	"RandomShuffle":        {Op: "StatelessShuffle"},
	"Multinomial":          {Op: Multinomial},
}

// Multinomial takes a seed of two numbers where the others take a key and a counter.
const Multinomial = "StatelessMultinomial"
