package core

import (
	"fmt"
	"strings"

	"google.golang.org/protobuf/proto"

	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
	"github.com/pecan-ml/pecan/service/dispatcher/core/durable"
)

// jobDifference says how a request differs from a job; empty if it does not.
func (c *Core) jobDifference(job *durable.Job, dataset *pecanv1.StoredDataset, options *pecanv1.JobOptions) string {
	var words []string
	if known := c.state.Dataset(job.DatasetId); known == nil || known.Fingerprint != dataset.Fingerprint {
		words = append(words, fmt.Sprintf("another dataset (fingerprint %s, this one has %s)", job.Plan.GetFingerprint(), dataset.Fingerprint))
	} else if !sameElements(known.Spec, dataset.Spec) {
		words = append(words, fmt.Sprintf("the same graph but another element structure (dataset %s, this one is %s)", known.DatasetId, dataset.DatasetId))
	}
	differ := func(name string, theirs, ours any) {
		if theirs != ours {
			words = append(words, fmt.Sprintf("%s %v instead of %v", name, theirs, ours))
		}
	}
	has := job.Options
	asked := has.GetMode()
	if has.GetRequestedMode() != pecanv1.Mode_MODE_UNSPECIFIED {
		asked = has.GetRequestedMode()
	}
	differ("mode", pecanv1.Word(asked, "MODE_"), pecanv1.Word(options.GetMode(), "MODE_"))
	differ("allow_nondeterministic", has.GetAllowNondeterministic(), options.GetAllowNondeterministic())
	differ("sharding", pecanv1.Word(has.GetSharding(), "SHARDING_"), pecanv1.Word(options.GetSharding(), "SHARDING_"))
	differ("compression", pecanv1.Word(has.GetCompression(), "COMPRESSION_"), pecanv1.Word(options.GetCompression(), "COMPRESSION_"))
	differ("max_element_bytes", has.GetMaxElementBytes(), options.GetMaxElementBytes())
	differ("payload_checksum", has.GetPayloadChecksum(), options.GetPayloadChecksum())
	differ("streams", streamsName(has), streamsName(options))
	differ("weight", has.EffectiveWeight(), options.EffectiveWeight())
	differ("tenant", has.EffectiveTenant(), options.EffectiveTenant())
	differ("target_workers", targetName(has), targetName(options))
	if !proto.Equal(has.GetPlacement(), options.GetPlacement()) {
		words = append(words, fmt.Sprintf("objective and limits %v instead of %v", has.GetPlacement(), options.GetPlacement()))
	}
	differ("order", orderName(has), orderName(options))
	if orderName(has) == orderName(options) {
		differ("order_tolerance", toleranceName(has), toleranceName(options))
	}
	differ("cache", pecanv1.Word(cacheOption(has), "CACHE_"), pecanv1.Word(cacheOption(options), "CACHE_"))
	if options.GetSeedSet() && (!has.GetSeedSet() || has.GetSeed() != options.GetSeed()) {
		if has.GetSeedSet() {
			differ("seed", has.GetSeed(), options.GetSeed())
		} else {
			words = append(words, fmt.Sprintf("a seed chosen by the service instead of %d", options.GetSeed()))
		}
	}
	return strings.Join(words, ", ")
}

// orderName says who decides the order of steps. Jobs of older dispatchers do not say, and have it off.
func orderName(options *pecanv1.JobOptions) string {
	if options.GetOrder() == pecanv1.Order_ORDER_UNSPECIFIED {
		return pecanv1.Word(pecanv1.Order_ORDER_OFF, "ORDER_")
	}
	return pecanv1.Word(options.GetOrder(), "ORDER_")
}

// toleranceName says how far elements may differ in another order; empty if the order is off.
func toleranceName(options *pecanv1.JobOptions) string {
	if orderName(options) == "off" {
		return ""
	}
	return pecanv1.Word(options.EffectiveTolerance(), "ORDER_TOLERANCE_")
}

func targetName(options *pecanv1.JobOptions) string {
	if options.GetTargetWorkers() == pecanv1.TargetWorkers_TARGET_WORKERS_LOCAL {
		return "LOCAL"
	}
	return "ANY"
}

func streamsName(options *pecanv1.JobOptions) string {
	if n := options.GetStreams(); n > 0 {
		return fmt.Sprint(n)
	}
	return "auto"
}
