package core

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"slices"

	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
)

// maxSteps bounds the steps of an order.
const maxSteps = 1 << 16

// orderKey is what a decision on the order of steps holds for. Under another plan the dataset may be divided elsewhere, or draw other
// random values by number, so an order that was tried under one plan says nothing about another one.
type orderKey struct {
	fingerprint string
	policy      pecanv1.Order
	tolerance   pecanv1.OrderTolerance
	plan        string
}

func (k orderKey) compare(other orderKey) int {
	return cmp.Or(cmp.Compare(k.fingerprint, other.fingerprint), cmp.Compare(k.policy, other.policy),
		cmp.Compare(k.tolerance, other.tolerance), cmp.Compare(k.plan, other.plan))
}

func keyOfDecision(decided *pecanv1.StoredOrder) orderKey {
	return orderKey{decided.GetFingerprint(), decided.GetPolicy(), decided.GetTolerance(), decided.GetPlanHash()}
}

// orderAsked gives what a decision on the order of a job's steps would hold for, or why there is none.
func (s *State) orderAsked(job *pecanv1.StoredJob) (key orderKey, off string) {
	options, dataset := job.Options, s.datasets[job.DatasetId]
	key = orderKey{dataset.GetFingerprint(), options.GetOrder(), options.GetOrderTolerance(), job.Plan.GetHash()}
	switch {
	case key.policy != pecanv1.Order_ORDER_AUTO && key.policy != pecanv1.Order_ORDER_PAPER:
		return key, "the job keeps its steps as they are written (order=\"off\")"
	case options.GetMode() == pecanv1.Mode_MODE_OFF:
		return key, "in mode off every worker runs the whole dataset as it is written"
	case key.tolerance < 0 || key.tolerance > pecanv1.OrderTolerance_ORDER_TOLERANCE_ANY:
		return key, "its tolerance is not known to this version"
	case dataset == nil:
		return key, "its dataset is not registered any more"
	}
	key.tolerance = options.EffectiveTolerance()
	return key, ""
}

// decisionOf is what was decided on the order of a job's steps; nil: nothing was, or nobody asked.
func (s *State) decisionOf(job *pecanv1.StoredJob) *pecanv1.StoredOrder {
	key, off := s.orderAsked(job)
	if off != "" {
		return nil
	}
	return s.orders[key]
}

// orderOf is the order that epochs of a job have which are opened now, or some of their streams; none: the registered one.
func (s *State) orderOf(job *pecanv1.StoredJob) []string {
	decided := s.decisionOf(job)
	if decided.GetStage() == pecanv1.OrderStage_ORDER_STAGE_ROLLED_BACK {
		return nil
	}
	return decided.GetOrder()
}

func (s *State) applyOrder(record *pecanv1.Record) error {
	switch kind := record.GetKind().(type) {
	case *pecanv1.Record_OrderDecided:
		return s.applyOrderDecided(kind.OrderDecided.GetDecided())
	case *pecanv1.Record_OrderJudged:
		return s.applyOrderJudged(kind.OrderJudged)
	}
	return s.applyProfileKept(record.GetProfileKept().GetProfile())
}

func (s *State) applyOrderDecided(decided *pecanv1.StoredOrder) error {
	key := keyOfDecision(decided)
	switch {
	case key.fingerprint == "" || !s.UsesGraph(key.fingerprint):
		return fmt.Errorf("an order for %q, which no dataset has", key.fingerprint)
	case key.policy != pecanv1.Order_ORDER_AUTO && key.policy != pecanv1.Order_ORDER_PAPER:
		return fmt.Errorf("an order by policy %v", key.policy)
	case key.tolerance < pecanv1.OrderTolerance_ORDER_TOLERANCE_EXACT || key.tolerance > pecanv1.OrderTolerance_ORDER_TOLERANCE_ANY:
		return fmt.Errorf("an order with tolerance %v", key.tolerance)
	case s.orders[key] != nil:
		return fmt.Errorf("a second decision for %q", key.fingerprint)
	case len(decided.Order) > 0 && (decided.Trial == nil || decided.Trial.Refused != ""):
		return errors.New("an order that no trial bears out")
	case decided.Stage != pecanv1.OrderStage_ORDER_STAGE_UNSPECIFIED && (decided.Stage != pecanv1.OrderStage_ORDER_STAGE_PILOTED || len(decided.Order) == 0):
		return fmt.Errorf("a decision for %d steps that begins with %v", len(decided.Order), decided.Stage)
	case decided.Production != nil:
		return errors.New("a decision that knows of production")
	}
	if err := cmp.Or(checkSteps(decided.Order), checkSteps(decided.Covers)); err != nil {
		return err
	}
	for _, step := range decided.Covers {
		if !slices.Contains(decided.Order, step) {
			return fmt.Errorf("an order that covers step %q, which it has not", step)
		}
	}
	s.orders[key] = decided
	return nil
}

// applyOrderJudged adopts an order that is piloted, or rolls one back.
func (s *State) applyOrderJudged(r *pecanv1.OrderJudged) error {
	decided := s.orders[orderKey{r.GetFingerprint(), r.GetPolicy(), r.GetTolerance(), r.GetPlanHash()}]
	back := r.GetStage() == pecanv1.OrderStage_ORDER_STAGE_ROLLED_BACK
	switch {
	case decided == nil || len(decided.Order) == 0 || decided.Stage == pecanv1.OrderStage_ORDER_STAGE_ROLLED_BACK:
		return fmt.Errorf("an order of %q is judged that nobody runs", r.GetFingerprint())
	case !back && (r.Stage != pecanv1.OrderStage_ORDER_STAGE_UNSPECIFIED || decided.Stage != pecanv1.OrderStage_ORDER_STAGE_PILOTED):
		return fmt.Errorf("an order of %q comes from %v to %v", r.Fingerprint, decided.Stage, r.Stage)
	}
	for _, each := range []float64{r.Production.GetRegisteredS(), r.Production.GetOrderedS()} {
		if math.IsNaN(each) || math.IsInf(each, 0) || each < 0 {
			return fmt.Errorf("an element took %v s in production", each)
		}
	}
	decided.Stage, decided.Production, decided.Why = r.Stage, r.Production, r.Why
	return nil
}

// checkOrderStreams refuses streams of an epoch that cannot have an order while others have not.
func checkOrderStreams(r *pecanv1.EpochOpened) error {
	if len(r.OrderStreams) > 0 && len(r.Order) == 0 {
		return fmt.Errorf("epoch %d opened with streams in an order, and without one", r.Epoch)
	}
	for i, stream := range r.OrderStreams {
		if stream >= r.Streams || i > 0 && stream <= r.OrderStreams[i-1] {
			return fmt.Errorf("epoch %d opened with the order in streams %v of %d", r.Epoch, r.OrderStreams, r.Streams)
		}
	}
	return nil
}

// checkSteps refuses what cannot be the names of a dataset's steps.
func checkSteps(order []string) error {
	if len(order) > maxSteps {
		return fmt.Errorf("an order of %d steps", len(order))
	}
	seen := map[string]bool{}
	for _, name := range order {
		if name == "" || seen[name] {
			return fmt.Errorf("an order with step %q, which has no name or is there twice", name)
		}
		seen[name] = true
	}
	return nil
}

func (s *State) applyProfileKept(profile *pecanv1.StoredProfile) error {
	if profile.GetFingerprint() == "" || !s.UsesGraph(profile.Fingerprint) {
		return fmt.Errorf("a profile of %q, which no dataset has", profile.GetFingerprint())
	}
	if len(profile.Nodes) > maxProfiled {
		return fmt.Errorf("a profile of %d nodes", len(profile.Nodes))
	}
	before := ""
	for _, node := range profile.Nodes {
		// Also a node without a name is not behind the one before.
		if node.GetNode() <= before {
			return fmt.Errorf("a profile with node %q behind %q", node.GetNode(), before)
		}
		if cpu := node.SelfCpuS; math.IsNaN(cpu) || math.IsInf(cpu, 0) || cpu < 0 {
			return fmt.Errorf("a profile with node %q, which took %v s", node.Node, cpu)
		}
		before = node.Node
	}
	s.profiles[profile.Fingerprint] = profile
	return nil
}

// setDataset registers a dataset, or with nil forgets it. What is known of the steps of a graph goes with its last dataset.
func (s *State) setDataset(id string, dataset *pecanv1.StoredDataset) {
	before := s.datasets[id].GetFingerprint()
	if dataset == nil {
		delete(s.datasets, id)
	} else {
		s.datasets[id] = dataset
	}
	if before == "" || before == dataset.GetFingerprint() || s.UsesGraph(before) {
		return
	}
	delete(s.profiles, before)
	for key := range s.orders {
		if key.fingerprint == before {
			delete(s.orders, key)
		}
	}
}

// listOrders gives the decisions in the order of their keys.
func (s *State) listOrders() []*pecanv1.StoredOrder {
	var list []*pecanv1.StoredOrder
	for _, decided := range s.orders {
		list = append(list, decided)
	}
	slices.SortFunc(list, func(a, b *pecanv1.StoredOrder) int { return keyOfDecision(a).compare(keyOfDecision(b)) })
	return list
}
