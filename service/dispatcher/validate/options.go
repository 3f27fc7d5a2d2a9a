package validate

import (
	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
	"github.com/pecan-ml/pecan/proto/reason"
)

// Options fills in the defaults of a job's options and refuses contradictions.
func Options(options *pecanv1.JobOptions) (*pecanv1.JobOptions, error) {
	o := &pecanv1.JobOptions{
		Mode: options.GetMode(), Sharding: options.GetSharding(), Seed: options.GetSeed(), SeedSet: options.GetSeedSet(),
		Compression: options.GetCompression(), MaxElementBytes: options.GetMaxElementBytes(), PayloadChecksum: options.GetPayloadChecksum(),
		AllowNondeterministic: options.GetAllowNondeterministic(), Order: options.GetOrder(), OrderTolerance: options.GetOrderTolerance(),
	}
	if err := First(known("mode", o.Mode), known("sharding", o.Sharding), known("compression", o.Compression), checkOrder(o)); err != nil {
		return nil, err
	}
	off := pecanv1.Sharding_SHARDING_OFF
	switch {
	case o.Mode == pecanv1.Mode_MODE_OFF && o.Sharding != off && o.Sharding != pecanv1.Sharding_SHARDING_UNSPECIFIED:
		return nil, reason.New(reason.BadArgument, "mode OFF gives every worker the whole dataset and excludes sharding %v", o.Sharding)
	case o.Mode != pecanv1.Mode_MODE_OFF && o.Mode != pecanv1.Mode_MODE_UNSPECIFIED && o.Sharding == off:
		return nil, reason.New(reason.BadArgument, "sharding OFF gives every worker the whole dataset and excludes mode %v", o.Mode)
	case o.Mode == pecanv1.Mode_MODE_OFF || o.Sharding == off:
		o.Mode, o.Sharding = pecanv1.Mode_MODE_OFF, off
	case o.Mode == pecanv1.Mode_MODE_UNSPECIFIED:
		o.Mode = pecanv1.Mode_MODE_EXACTLY_ONCE
	}
	if o.Sharding == pecanv1.Sharding_SHARDING_UNSPECIFIED {
		o.Sharding = pecanv1.Sharding_SHARDING_DYNAMIC
	}
	if o.Compression == pecanv1.Compression_COMPRESSION_UNSPECIFIED {
		o.Compression = pecanv1.Compression_COMPRESSION_AUTO
	}
	if o.MaxElementBytes == 0 {
		o.MaxElementBytes = maxElementBytes
	}
	if o.MaxElementBytes < 0 || o.MaxElementBytes > maxElementBytes {
		return nil, reason.New(reason.BadArgument, "max_element_bytes %d: want 1 to %d (2 GiB), or 0 for the maximum", o.MaxElementBytes, int64(maxElementBytes))
	}
	if !o.SeedSet {
		o.Seed = 0
	}
	return o, nil
}

// checkOrder fills in the defaults of order and tolerance.
func checkOrder(o *pecanv1.JobOptions) error {
	if err := First(known("order", o.Order), known("order_tolerance", o.OrderTolerance)); err != nil {
		return err
	}
	unsaid := o.OrderTolerance == pecanv1.OrderTolerance_ORDER_TOLERANCE_UNSPECIFIED
	switch o.Order {
	case pecanv1.Order_ORDER_UNSPECIFIED:
		o.Order = pecanv1.Order_ORDER_OFF
	case pecanv1.Order_ORDER_PAPER:
		if !unsaid && o.OrderTolerance != pecanv1.OrderTolerance_ORDER_TOLERANCE_ANY {
			return reason.New(reason.BadArgument, "order PAPER has no bound on changes and excludes order_tolerance %v", o.OrderTolerance)
		}
	}
	o.OrderTolerance = o.EffectiveTolerance()
	return nil
}
