package nodedef

import (
	"crypto/sha256"
	"encoding/hex"
	"slices"
	"strings"

	tf "github.com/pecan-ml/pecan/proto/tensorflow"
)

// IsIdentity reports whether a function returns exactly its arguments, in order.
func IsIdentity(f *tf.FunctionDef) bool {
	args, outs := f.GetSignature().GetInputArg(), f.GetSignature().GetOutputArg()
	if len(args) != len(outs) {
		return false
	}
	from := map[string]string{}
	for _, n := range f.GetNodeDef() {
		if n.GetOp() != "Identity" || len(n.GetInput()) == 0 {
			return false
		}
		from[n.GetName()] = n.GetInput()[0]
	}
	for i, out := range outs {
		name := InputNode(f.GetRet()[out.GetName()])
		for hops := 0; hops <= len(from); hops++ {
			source, ok := from[name]
			if !ok {
				break
			}
			name = InputNode(source)
		}
		if name != args[i].GetName() {
			return false
		}
	}
	return true
}

// CalledFunctions returns the names of the functions in a node's attributes, in a fixed order.
func CalledFunctions(n *tf.NodeDef) []string {
	var keys []string
	for key, v := range n.GetAttr() {
		switch x := v.GetValue().(type) {
		case *tf.AttrValue_Func:
			keys = append(keys, key)
		case *tf.AttrValue_List:
			if len(x.List.GetFunc()) > 0 {
				keys = append(keys, key)
			}
		}
	}
	slices.Sort(keys)
	var called []string
	for _, key := range keys {
		switch x := n.Attr[key].GetValue().(type) {
		case *tf.AttrValue_Func:
			if x.Func.GetName() != "" {
				called = append(called, x.Func.GetName())
			}
		case *tf.AttrValue_List:
			for _, f := range x.List.GetFunc() {
				called = append(called, f.GetName())
			}
		}
	}
	return called
}

// CloneInfix separates the name of a function from the suffix of its copy.
const CloneInfix = "_pecan_"

// RenameSignature returns a signature with another name. It shares the parts of the old one.
func RenameSignature(sig *tf.OpDef, name string) *tf.OpDef {
	return &tf.OpDef{
		Name: name, InputArg: sig.GetInputArg(), OutputArg: sig.GetOutputArg(), ControlOutput: sig.GetControlOutput(),
		Attr: sig.GetAttr(), IsStateful: sig.GetIsStateful(), IsCommutative: sig.GetIsCommutative(),
		IsAggregate: sig.GetIsAggregate(), AllowsUninitializedInput: sig.GetAllowsUninitializedInput(),
		IsDistributedCommunication: sig.GetIsDistributedCommunication(),
	}
}

// CopySignature returns a function with the same arguments and results, without nodes. It shares the parts of
// the old one.
func CopySignature(f *tf.FunctionDef) *tf.FunctionDef {
	return &tf.FunctionDef{
		Signature: f.GetSignature(), Attr: f.GetAttr(), ArgAttr: f.GetArgAttr(), ResourceArgUniqueId: f.GetResourceArgUniqueId(),
		Ret: f.GetRet(), ControlRet: f.GetControlRet(),
	}
}

// RenameCalls replaces the function that a node calls. It copies an attribute before it changes it.
func RenameCalls(n *tf.NodeDef, from, to string) {
	for key, v := range n.Attr {
		switch x := v.GetValue().(type) {
		case *tf.AttrValue_Func:
			if x.Func.GetName() == from {
				n.Attr[key] = &tf.AttrValue{Value: &tf.AttrValue_Func{Func: &tf.NameAttrList{Name: to, Attr: x.Func.GetAttr()}}}
			}
		case *tf.AttrValue_List:
			if len(x.List.GetFunc()) == 0 {
				continue
			}
			list := &tf.AttrValue_ListValue{}
			for _, f := range x.List.GetFunc() {
				called := f
				if f.GetName() == from {
					called = &tf.NameAttrList{Name: to, Attr: f.GetAttr()}
				}
				list.Func = append(list.Func, called)
			}
			n.Attr[key] = &tf.AttrValue{Value: &tf.AttrValue_List{List: list}}
		}
	}
}

// ShortHash returns a hash of 16 hexadecimal digits, for use in names.
func ShortHash(parts ...string) string {
	sum := sha256.Sum256([]byte(strings.Join(parts, "\x00")))
	return hex.EncodeToString(sum[:8])
}
