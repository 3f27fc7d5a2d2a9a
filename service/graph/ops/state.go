package ops

import (
	"strings"
)

// GeneratorOps draw from a tf.random.Generator, whose state is a variable that every stream has a copy of. It goes on from
// call to call.
var GeneratorOps = Names(`
	StatefulRandomBinomial StatefulStandardNormal StatefulStandardNormalV2 StatefulTruncatedNormal StatefulUniform
	StatefulUniformFullInt StatefulUniformInt RngReadAndSkip RngSkip
`)

// IsTable tells whether an op makes a lookup table, which is empty until something fills it.
func IsTable(op string) bool { return strings.Contains(op, "HashTable") }

// FillsTable tells whether an op fills a lookup table.
func FillsTable(op string) bool {
	return op == "LookupTableImportV2" || strings.HasPrefix(op, "InitializeTable")
}

// FillsTableFromFiles tells whether an op fills a table with what is in files, and not in the graph.
func FillsTableFromFiles(op string) bool { return strings.HasPrefix(op, "InitializeTableFrom") }

// WritesVariable tells whether an op gives the variable in its first input another value.
func WritesVariable(op string) bool {
	switch op {
	case "AssignVariableOp", "AssignAddVariableOp", "AssignSubVariableOp", "ResourceStridedSliceAssign":
		return true
	}
	return strings.HasPrefix(op, "ResourceScatter")
}

// HandleOnlyOps are ops that take the handle of a variable and do not look at its value.
var HandleOnlyOps = Names(`VarIsInitializedOp VariableShape DisableCopyOnRead IsResourceHandleRefCounting`)
