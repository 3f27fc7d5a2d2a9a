package validate

import (
	"math"
	"slices"
	"strings"

	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
)

// CleanHeartbeat repairs invalid numbers of a heartbeat.
func CleanHeartbeat(heartbeat *pecanv1.WorkerHeartbeat) {
	listed := 0
	for i, list := range heartbeat.Streams {
		if listed += len(list.GetStreams()); listed > MaxListed || i >= MaxListed {
			heartbeat.Streams = heartbeat.Streams[:i]
			break
		}
	}
	for _, s := range []*float64{&heartbeat.CpuS, &heartbeat.UptimeS, &heartbeat.ComputedS, &heartbeat.BlockedS} {
		*s = CleanSeconds(*s)
	}
	heartbeat.ResidentBytes = max(heartbeat.ResidentBytes, 0)
	cleanHost(heartbeat.Host)
	cleanStore(heartbeat.Store)
}

// maxSamples bounds the samples of a worker's store in each direction.
const maxSamples = 64

// cleanStore drops samples that cannot be. It may be nil.
func cleanStore(store *pecanv1.StoreRates) {
	if store == nil {
		return
	}
	store.Problem = Shorten(store.Problem)
	for _, list := range []*[]*pecanv1.StoreTransfer{&store.Reads, &store.Writes} {
		kept := (*list)[max(0, len(*list)-maxSamples):]
		*list = slices.DeleteFunc(kept, func(s *pecanv1.StoreTransfer) bool {
			return s.GetBytes() == 0 || !(s.GetSeconds() > 0 && s.GetWorkS() >= 0) || math.IsInf(s.GetSeconds()+s.GetWorkS(), 0)
		})
	}
}

// maxSubWindows bounds the sub-windows of a heartbeat. maxSubWindow bounds the seconds of one. maxLocalWorkers bounds the
// local workers of a trainer.
const (
	maxLocalWorkers = 1024
	maxSubWindows   = 64
	maxSubWindow    = 24 * 3600
)

// CleanConsumer repairs what a client's heartbeat reports of its training loop. Sub-windows that cannot be are dropped.
func CleanConsumer(heartbeat *pecanv1.ClientHeartbeatRequest) {
	heartbeat.HostId, heartbeat.TrainerId = Shorten(heartbeat.HostId), Shorten(heartbeat.TrainerId)
	if local := heartbeat.LocalWorkers; local != nil {
		local.Most, local.Running = min(local.Most, maxLocalWorkers), min(local.Running, maxLocalWorkers)
	}
	cleanHost(heartbeat.Host)
	subs := heartbeat.SubWindows
	if len(subs) > maxSubWindows {
		subs = subs[len(subs)-maxSubWindows:]
	}
	heartbeat.SubWindows = nil
	last := uint64(0)
	for _, s := range subs {
		if s.GetNumber() <= last || s.GetElements() == 0 || !(s.GetSeconds() > 0 && s.GetSeconds() <= maxSubWindow && s.GetAgeS() >= 0 && s.GetAgeS() <= maxSubWindow) {
			continue
		}
		last = s.Number
		s.WaitedS, s.PausedS, s.Queue = min(CleanSeconds(s.WaitedS), s.Seconds), min(CleanSeconds(s.PausedS), maxSubWindow), CleanSeconds(s.Queue)
		heartbeat.SubWindows = append(heartbeat.SubWindows, s)
	}
}

// cleanHost repairs the load of a host. It may be nil.
func cleanHost(host *pecanv1.HostLoad) {
	if host == nil {
		return
	}
	host.HostId, host.Cores = Shorten(host.HostId), max(host.Cores, 0)
	for _, figure := range []*float64{&host.Load, &host.Pressure, &host.Memory, &host.NetworkBytesS} {
		*figure = CleanSeconds(*figure)
	}
	host.Pressure, host.Memory = min(host.Pressure, 1), min(host.Memory, 1)
}

// CleanMetrics repairs invalid metrics of a job's nodes.
func CleanMetrics(metrics *pecanv1.JobMetrics) {
	for _, nodes := range []*[]*pecanv1.NodeMetrics{&metrics.Nodes, &metrics.Ordered, &metrics.Cached, &metrics.Inline} {
		cleanNodes(nodes, maxCallDepth)
	}
	metrics.CpuWaitS = CleanSeconds(metrics.CpuWaitS)
}

// maxCallDepth bounds how deep the functions of steps are in each other.
const maxCallDepth = 8

func cleanNodes(nodes *[]*pecanv1.NodeMetrics, depth int) {
	if depth == 0 {
		*nodes = nil
	}
	if len(*nodes) > MaxListed {
		*nodes = (*nodes)[:MaxListed]
	}
	for _, node := range *nodes {
		node.SelfCpuS = CleanSeconds(node.SelfCpuS)
		node.Node, node.Op = Shorten(node.Node), Shorten(node.Op)
		cleanNodes(&node.Inside, depth-1)
	}
}

// CleanTrial repairs an invalid trial result. A difference that is not a number counts as infinite.
func CleanTrial(trial *pecanv1.OrderTrial) {
	if trial == nil {
		return
	}
	trial.Refused = Shorten(trial.Refused)
	trial.OriginalS, trial.OrderedS, trial.CpuS = CleanSeconds(trial.OriginalS), CleanSeconds(trial.OrderedS), CleanSeconds(trial.CpuS)
	for _, saved := range []*float64{&trial.SavedLowS, &trial.SavedHighS} {
		if math.IsNaN(*saved) {
			*saved = 0
		}
	}
	if len(trial.Components) > maxComponents {
		trial.Components = trial.Components[:maxComponents]
	}
	for _, difference := range trial.Components {
		for _, value := range []*float64{&difference.MaxDifference, &difference.Bound, &difference.Range} {
			if math.IsNaN(*value) {
				*value = math.Inf(1)
			}
		}
	}
}

func CleanSeconds(s float64) float64 {
	if math.IsNaN(s) || s < 0 || s > 1e12 {
		return 0
	}
	return s
}

// Shorten truncates a peer's text that is stored or logged.
func Shorten(text string) string {
	if len(text) > maxTextBytes {
		return strings.ToValidUTF8(text[:maxTextBytes], "") + "..."
	}
	return text
}
