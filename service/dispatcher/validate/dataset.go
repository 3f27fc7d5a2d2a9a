package validate

import (
	"fmt"
	"math"

	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
	"github.com/pecan-ml/pecan/proto/reason"
)

// Spec checks a trainer's element spec, before the graph is compared with it.
func Spec(spec *pecanv1.DatasetSpec) error {
	if spec == nil || len(spec.Components) == 0 {
		return reason.New(reason.SpecMismatch, "the element spec is missing: a dataset yields at least one component")
	}
	if len(spec.Components) > maxComponents || len(spec.ElementSpec) > maxSpecBytes {
		return reason.New(reason.SpecMismatch, "the element spec has %d components and %d bytes; the limits are %d and %d", len(spec.Components), len(spec.ElementSpec), maxComponents, maxSpecBytes)
	}
	switch spec.Compression {
	case "", "auto", "snappy", "none":
	default:
		return reason.New(reason.BadArgument, "compression %.40q: want auto, snappy or none", spec.Compression)
	}
	for i, component := range spec.Components {
		if err := checkComponent(component); err != nil {
			return reason.New(reason.SpecMismatch, "component %d of the element spec: %w", i, err)
		}
	}
	return Text("tensorflow_version", spec.TensorflowVersion)
}

func checkComponent(component *pecanv1.ComponentSpec) error {
	if component == nil || component.Dtype <= 0 || component.Dtype > 255 {
		return fmt.Errorf("dtype %d is none of TensorFlow's", component.GetDtype())
	}
	if component.UnknownRank && len(component.Dims) > 0 {
		return fmt.Errorf("unknown rank, but %d dimensions", len(component.Dims))
	}
	if len(component.Dims) > 254 {
		return fmt.Errorf("%d dimensions, at most 254 are possible", len(component.Dims))
	}
	product := int64(1)
	for _, dim := range component.Dims {
		if dim < -1 {
			return fmt.Errorf("a dimension is %d, but -1 (unknown) is the least", dim)
		}
		if dim > 0 && product > math.MaxInt64/dim {
			return fmt.Errorf("dimensions %v multiply to more than 2^63", component.Dims)
		}
		if dim > 0 {
			product *= dim
		}
	}
	return nil
}
