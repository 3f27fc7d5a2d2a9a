package ops

import (
	"strings"
)

// GeneratorOps draw from a tf.random.Generator. Its state is a variable, and each call advances it. Every
// stream has a copy of the variable.
var GeneratorOps = Names(`
	StatefulRandomBinomial StatefulStandardNormal StatefulStandardNormalV2 StatefulTruncatedNormal StatefulUniform
	StatefulUniformFullInt StatefulUniformInt RngReadAndSkip RngSkip
`)

// IsTable reports whether an op creates a lookup table. The table is empty until another op fills it.
func IsTable(op string) bool { return strings.Contains(op, "HashTable") }

// FillsTable reports whether an op fills a lookup table.
func FillsTable(op string) bool {
	return op == "LookupTableImportV2" || strings.HasPrefix(op, "InitializeTable")
}

// FillsTableFromFiles reports whether an op fills a table from files instead of from the graph.
func FillsTableFromFiles(op string) bool { return strings.HasPrefix(op, "InitializeTableFrom") }

// WritesVariable reports whether an op changes the value of the variable in its first input.
func WritesVariable(op string) bool {
	switch op {
	case "AssignVariableOp", "AssignAddVariableOp", "AssignSubVariableOp", "ResourceStridedSliceAssign":
		return true
	}
	return strings.HasPrefix(op, "ResourceScatter")
}

// HandleOnlyOps take the handle of a variable and do not read its value.
var HandleOnlyOps = Names(`VarIsInitializedOp VariableShape DisableCopyOnRead IsResourceHandleRefCounting`)

// AnonymousVariable is the name for which TensorFlow creates a new variable each time the node runs.
const AnonymousVariable = "cd2c89b7-88b7-44c8-ad83-06c2a9158347"
