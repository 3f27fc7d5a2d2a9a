package nodedef

import (
	tf "github.com/pecan-ml/pecan/proto/tensorflow"
)

// TypesAttr returns an attribute with a list of types.
func TypesAttr(types []tf.DataType) *tf.AttrValue {
	return &tf.AttrValue{Value: &tf.AttrValue_List{List: &tf.AttrValue_ListValue{Type: types}}}
}

// ShapesAttr returns an attribute with a list of shapes.
func ShapesAttr(shapes []*tf.TensorShapeProto) *tf.AttrValue {
	return &tf.AttrValue{Value: &tf.AttrValue_List{List: &tf.AttrValue_ListValue{Shape: shapes}}}
}

// BoolAttr returns a Boolean attribute.
func BoolAttr(b bool) *tf.AttrValue { return &tf.AttrValue{Value: &tf.AttrValue_B{B: b}} }

// IntAttr returns an attribute with one integer.
func IntAttr(i int64) *tf.AttrValue { return &tf.AttrValue{Value: &tf.AttrValue_I{I: i}} }

// BytesAttr returns an attribute with one string.
func BytesAttr(s string) *tf.AttrValue { return &tf.AttrValue{Value: &tf.AttrValue_S{S: []byte(s)}} }

// TypeAttr returns an attribute with one type.
func TypeAttr(t tf.DataType) *tf.AttrValue { return &tf.AttrValue{Value: &tf.AttrValue_Type{Type: t}} }

// FuncAttr returns an attribute that names a function.
func FuncAttr(name string) *tf.AttrValue {
	return &tf.AttrValue{Value: &tf.AttrValue_Func{Func: &tf.NameAttrList{Name: name}}}
}

// DatasetAttrs returns output_types and output_shapes, which nearly every dataset op has.
func DatasetAttrs(types []tf.DataType, shapes []*tf.TensorShapeProto) map[string]*tf.AttrValue {
	return map[string]*tf.AttrValue{"output_types": TypesAttr(types), "output_shapes": ShapesAttr(shapes)}
}
