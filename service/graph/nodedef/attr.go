package nodedef

import (
	tf "github.com/pecan-ml/pecan/proto/tensorflow"
)

// Attribute helpers.

func TypesAttr(types []tf.DataType) *tf.AttrValue {
	return &tf.AttrValue{Value: &tf.AttrValue_List{List: &tf.AttrValue_ListValue{Type: types}}}
}

func ShapesAttr(shapes []*tf.TensorShapeProto) *tf.AttrValue {
	return &tf.AttrValue{Value: &tf.AttrValue_List{List: &tf.AttrValue_ListValue{Shape: shapes}}}
}

func BoolAttr(b bool) *tf.AttrValue { return &tf.AttrValue{Value: &tf.AttrValue_B{B: b}} }

func IntAttr(i int64) *tf.AttrValue { return &tf.AttrValue{Value: &tf.AttrValue_I{I: i}} }

func BytesAttr(s string) *tf.AttrValue { return &tf.AttrValue{Value: &tf.AttrValue_S{S: []byte(s)}} }

func TypeAttr(t tf.DataType) *tf.AttrValue { return &tf.AttrValue{Value: &tf.AttrValue_Type{Type: t}} }

func FuncAttr(name string) *tf.AttrValue {
	return &tf.AttrValue{Value: &tf.AttrValue_Func{Func: &tf.NameAttrList{Name: name}}}
}

// DatasetAttrs are the two attributes that nearly every dataset op has.
func DatasetAttrs(types []tf.DataType, shapes []*tf.TensorShapeProto) map[string]*tf.AttrValue {
	return map[string]*tf.AttrValue{"output_types": TypesAttr(types), "output_shapes": ShapesAttr(shapes)}
}
