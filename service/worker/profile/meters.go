package profile

import (
	"math"

	"github.com/pecan-ml/pecan/native/tf"
	"github.com/pecan-ml/pecan/service/worker/dataset"
	"google.golang.org/protobuf/encoding/protowire"
)

// readMeters returns what was counted so far; nil if nothing can be read.
func (p *Profiler) readMeters(it *tf.Iterator) map[string]Counts {
	if p.meters == "" {
		return nil
	}
	raw, err := it.Metered(p.meters)
	if err != nil {
		return nil
	}
	counted := map[string]Counts{}
	if eachMeter(raw, func(name string, t Counts) { counted[name] = t }) != nil {
		return nil
	}
	return counted
}

// These are the fields of a serialised Summary of histograms that are read here.
const (
	summaryValue      = 1
	summaryTag        = 1
	summaryHistogram  = 5
	histogramElements = 3
	histogramBytes    = 4
)

// eachMeter calls visit with the counts under each name of a serialised Summary.
func eachMeter(summary []byte, visit func(name string, counted Counts)) error {
	return dataset.EachField(summary, func(number protowire.Number, value []byte) error {
		if number != summaryValue {
			return nil
		}
		var name string
		var counted Counts
		err := dataset.EachField(value, func(number protowire.Number, value []byte) error {
			switch number {
			case summaryTag:
				name = string(value)
			case summaryHistogram:
				return counted.readHistogram(value)
			}
			return nil
		})
		if err == nil {
			visit(name, counted)
		}
		return err
	})
}

// readHistogram reads the number of values in a histogram and their sum. Both are whole numbers and exact up to
// 2^53.
func (c *Counts) readHistogram(message []byte) error {
	for len(message) > 0 {
		number, kind, n := protowire.ConsumeTag(message)
		if n < 0 {
			return protowire.ParseError(n)
		}
		message = message[n:]
		if n = protowire.ConsumeFieldValue(number, kind, message); n < 0 {
			return protowire.ParseError(n)
		}
		if kind == protowire.Fixed64Type {
			bits, _ := protowire.ConsumeFixed64(message)
			switch value := uint64(max(0, math.Float64frombits(bits))); number {
			case histogramElements:
				c.Elements = value
			case histogramBytes:
				c.Out = value
			}
		}
		message = message[n:]
	}
	return nil
}
