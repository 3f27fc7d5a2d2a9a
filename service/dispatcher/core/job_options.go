package core

import (
	"fmt"
	"strings"

	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
)

// jobDifference says in words in what a request differs from a job, empty when in nothing.
func (c *Core) jobDifference(job *pecanv1.StoredJob, dataset *pecanv1.StoredDataset, options *pecanv1.JobOptions) string {
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
	differ("mode", word(asked, "MODE_"), word(options.GetMode(), "MODE_"))
	differ("allow_nondeterministic", has.GetAllowNondeterministic(), options.GetAllowNondeterministic())
	differ("sharding", word(has.GetSharding(), "SHARDING_"), word(options.GetSharding(), "SHARDING_"))
	differ("compression", word(has.GetCompression(), "COMPRESSION_"), word(options.GetCompression(), "COMPRESSION_"))
	differ("max_element_bytes", has.GetMaxElementBytes(), options.GetMaxElementBytes())
	differ("payload_checksum", has.GetPayloadChecksum(), options.GetPayloadChecksum())
	differ("order", orderWord(has), orderWord(options))
	if orderWord(has) == orderWord(options) {
		differ("order_tolerance", toleranceWord(has), toleranceWord(options))
	}
	if options.GetSeedSet() && (!has.GetSeedSet() || has.GetSeed() != options.GetSeed()) {
		if has.GetSeedSet() {
			differ("seed", has.GetSeed(), options.GetSeed())
		} else {
			words = append(words, fmt.Sprintf("a seed chosen by the service instead of %d", options.GetSeed()))
		}
	}
	return strings.Join(words, ", ")
}

// word is an enum's value as callers write it.
func word(value fmt.Stringer, prefix string) string {
	return strings.ToLower(strings.TrimPrefix(value.String(), prefix))
}

// orderWord is who decides the order of steps; jobs of older dispatchers do not say, and have it off.
func orderWord(options *pecanv1.JobOptions) string {
	if options.GetOrder() == pecanv1.Order_ORDER_UNSPECIFIED {
		return word(pecanv1.Order_ORDER_OFF, "ORDER_")
	}
	return word(options.GetOrder(), "ORDER_")
}

// toleranceWord is how far elements may differ in another order; empty where the order stays, and it matters to nobody.
func toleranceWord(options *pecanv1.JobOptions) string {
	if orderWord(options) == "off" {
		return ""
	}
	return word(options.EffectiveTolerance(), "ORDER_TOLERANCE_")
}
