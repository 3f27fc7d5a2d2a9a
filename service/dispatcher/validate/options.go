package validate

import (
	"regexp"
	"strings"

	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
	"github.com/pecan-ml/pecan/proto/reason"
)

// Options fills in the defaults of a job's options and refuses contradictions.
func Options(options *pecanv1.JobOptions) (*pecanv1.JobOptions, error) {
	o := &pecanv1.JobOptions{
		Mode: options.GetMode(), Sharding: options.GetSharding(), Seed: options.GetSeed(), SeedSet: options.GetSeedSet(),
		Compression: options.GetCompression(), MaxElementBytes: options.GetMaxElementBytes(), PayloadChecksum: options.GetPayloadChecksum(),
		AllowNondeterministic: options.GetAllowNondeterministic(), Order: options.GetOrder(), OrderTolerance: options.GetOrderTolerance(),
		Streams: options.GetStreams(), Placement: options.GetPlacement(), Weight: options.EffectiveWeight(), Tenant: options.EffectiveTenant(),
		TargetWorkers: options.GetTargetWorkers(), Cache: options.GetCache(),
	}
	if err := First(checkPlacement(o.Placement), checkShare(options), known("target_workers", o.TargetWorkers), known("mode", o.Mode), known("sharding", o.Sharding), known("compression", o.Compression), known("cache", o.Cache), checkOrder(o)); err != nil {
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
	if o.Cache == pecanv1.Cache_CACHE_UNSPECIFIED {
		o.Cache = pecanv1.Cache_CACHE_CANDIDATES
	}
	if o.MaxElementBytes == 0 {
		o.MaxElementBytes = maxElementBytes
	}
	if o.MaxElementBytes < 0 || o.MaxElementBytes > maxElementBytes {
		return nil, reason.New(reason.BadArgument, "max_element_bytes %d: want 1 to %d (2 GiB), or 0 for the maximum", o.MaxElementBytes, int64(maxElementBytes))
	}
	if o.Streams < 0 || o.Streams > MaxStreams {
		return nil, reason.New(reason.BadArgument, "streams %d: want 1 to %d, or 0 to let the plan decide", o.Streams, MaxStreams)
	}
	if o.Streams > 0 && o.Mode == pecanv1.Mode_MODE_OFF {
		return nil, reason.New(reason.BadArgument, "streams %d: with sharding OFF every worker has one stream with the whole dataset; leave streams out, or choose another sharding policy", o.Streams)
	}
	if !o.SeedSet {
		o.Seed = 0
	}
	return o, nil
}

// Division refuses a division that no plan has. It may be nil.
func Division(division *pecanv1.Division) error {
	n, group := division.GetNumStreams(), division.GetGroup()
	if n < 0 || n > MaxStreams || group < 0 || group > n {
		return reason.New(reason.BadArgument, "a division into %d streams with groups of %d: want at most %d streams, and groups of at most as many", n, group, MaxStreams)
	}
	return nil
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
	case pecanv1.Order_ORDER_PAPER, pecanv1.Order_ORDER_PAPER_UNGUARDED:
		if !unsaid && o.OrderTolerance != pecanv1.OrderTolerance_ORDER_TOLERANCE_ANY {
			return reason.New(reason.BadArgument, "order %s has no bound on changes and excludes order_tolerance %v", strings.TrimPrefix(o.Order.String(), "ORDER_"), o.OrderTolerance)
		}
	}
	o.OrderTolerance = o.EffectiveTolerance()
	return nil
}

// minWeight and maxWeight bound the weight of a job.
const (
	minWeight = 0.01
	maxWeight = 100
)

var tenantForm = regexp.MustCompile(TenantForm)

// checkShare refuses a weight out of range and a malformed name of a tenant.
func checkShare(options *pecanv1.JobOptions) error {
	if w := options.GetWeight(); w != 0 && !(w >= minWeight && w <= maxWeight) {
		return reason.New(reason.BadArgument, "weight %v: want %v to %v, or leave it out for 1", w, minWeight, maxWeight)
	}
	if name := options.GetTenant(); name != "" && !tenantForm.MatchString(name) {
		return reason.New(reason.BadName, "tenant %.80q: want 1 to 63 lower-case letters, digits, dots, underscores or hyphens, the first a letter or digit", name)
	}
	return nil
}

// maxWorkers bounds the limits of a job's workers.
const maxWorkers = 100_000

// checkPlacement refuses what no search for workers can follow. It may be nil.
func checkPlacement(p *pecanv1.PlacementOptions) error {
	switch p.GetObjective() {
	case "", "cost", "time":
		if p.GetBudgetPerHour() != 0 {
			return reason.New(reason.BadArgument, "a budget per hour has no effect with objective %q", p.GetObjective())
		}
	case "budget":
		if !(p.BudgetPerHour > 0) || CleanSeconds(p.BudgetPerHour) == 0 {
			return reason.New(reason.BadArgument, "objective budget needs a budget per hour above 0, got %v", p.BudgetPerHour)
		}
	default:
		return reason.New(reason.BadArgument, "objective %.40q: want cost, time or budget", p.GetObjective())
	}
	for _, bounds := range [][2]int32{{p.GetMinRemote(), p.GetMaxRemote()}, {p.GetMinLocal(), p.GetMaxLocal()}} {
		least, most := bounds[0], bounds[1]
		if least < 0 || least > maxWorkers || most < -1 || most > maxWorkers || most == -1 && least > 0 || most > 0 && most < least {
			return reason.New(reason.BadArgument, "limits of %d to %d workers: want 0 to %d, the least at most the greatest", least, most, maxWorkers)
		}
	}
	return Text("trainer_type", p.GetTrainerType())
}
