package durable

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"slices"

	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
	"github.com/pecan-ml/pecan/service/dispatcher/core/jobmetrics"
)

// maxSteps bounds the steps of an order.
const maxSteps = 1 << 16

// OrderKey is what a decision on the order of steps is valid for. Under another plan the dataset may be divided
// elsewhere, or random values may have other numbers. A trial under one plan therefore says nothing about
// another.
type OrderKey struct {
	Fingerprint string
	Policy      pecanv1.Order
	Tolerance   pecanv1.OrderTolerance
	// PlanHash is the plan's hash for any number of streams.
	PlanHash string
}

func (k OrderKey) Compare(other OrderKey) int {
	return cmp.Or(cmp.Compare(k.Fingerprint, other.Fingerprint), cmp.Compare(k.Policy, other.Policy),
		cmp.Compare(k.Tolerance, other.Tolerance), cmp.Compare(k.PlanHash, other.PlanHash))
}

func KeyOf(decided *pecanv1.StoredOrder) OrderKey {
	return OrderKey{decided.GetFingerprint(), decided.GetPolicy(), decided.GetTolerance(), decided.GetPlanHash()}
}

// OrderKey returns the key of a decision for a job, or why the job has none.
func (s *State) OrderKey(job *Job) (key OrderKey, off string) {
	options, dataset := job.Options, s.datasets[job.DatasetId]
	key = OrderKey{dataset.GetFingerprint(), options.GetOrder(), options.GetOrderTolerance(), cmp.Or(job.Plan.GetOrderHash(), job.Plan.GetHash())}
	switch {
	case !isPolicy(key.Policy):
		return key, "the job keeps its steps as they are written (order=\"off\")"
	case options.GetMode() == pecanv1.Mode_MODE_OFF:
		return key, "in mode off every worker runs the whole dataset as it is written"
	case key.Tolerance < 0 || key.Tolerance > pecanv1.OrderTolerance_ORDER_TOLERANCE_ANY:
		return key, "this version does not know its tolerance"
	case dataset == nil:
		return key, "its dataset is no longer registered"
	}
	key.Tolerance = options.EffectiveTolerance()
	return key, ""
}

func isPolicy(order pecanv1.Order) bool {
	return order == pecanv1.Order_ORDER_AUTO || order.Published()
}

// DecisionFor returns the decision on the order of a job's steps; nil without one.
func (s *State) DecisionFor(job *Job) *pecanv1.StoredOrder {
	key, off := s.OrderKey(job)
	if off != "" {
		return nil
	}
	return s.Decision(key)
}

// HasDecision reports whether there is a decision on the order of a graph's steps.
func (s *State) HasDecision(fingerprint string) bool {
	return len(s.known(fingerprint).GetOrders()) > 0
}

// OrderFor returns the order of epochs that a job opens now, or of some of their streams; nil for the registered
// order.
func (s *State) OrderFor(job *Job) []string {
	decided := s.DecisionFor(job)
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
	case *pecanv1.Record_OrderSpread:
		return s.applyOrderSpread(kind.OrderSpread)
	case *pecanv1.Record_OrderWidened:
		return s.applyOrderWidened(kind.OrderWidened)
	}
	return s.applyProfileLearned(record.GetProfileLearned().GetProfile())
}

func (s *State) applyOrderDecided(decided *pecanv1.StoredOrder) error {
	key := KeyOf(decided)
	if err := checkDecided(decided); err != nil {
		return err
	}
	switch {
	case !s.UsesGraph(key.Fingerprint):
		return fmt.Errorf("the order is for the graph %q, which no dataset has", key.Fingerprint)
	case s.Decision(key) != nil:
		return fmt.Errorf("a decision on the order of %q exists already", key.Fingerprint)
	case decided.Stage != pecanv1.OrderStage_ORDER_STAGE_UNSPECIFIED && (decided.Stage != pecanv1.OrderStage_ORDER_STAGE_PILOTED || len(decided.Order) == 0):
		return fmt.Errorf("a decision on the order of %d steps cannot begin at stage %v", len(decided.Order), decided.Stage)
	case decided.Production != nil:
		return errors.New("a new decision cannot have results of production")
	}
	s.learn(key.Fingerprint, func(k *learnedGraph) { k.Orders = pecanv1.With(k.Orders, decided) })
	return nil
}

// checkDecided refuses what cannot be a decision on an order.
func checkDecided(decided *pecanv1.StoredOrder) error {
	switch key := KeyOf(decided); {
	case key.Fingerprint == "":
		return errors.New("the order has no fingerprint of a graph")
	case !isPolicy(key.Policy):
		return fmt.Errorf("the decision on an order has the unknown policy %v", key.Policy)
	case key.Tolerance < pecanv1.OrderTolerance_ORDER_TOLERANCE_EXACT || key.Tolerance > pecanv1.OrderTolerance_ORDER_TOLERANCE_ANY:
		return fmt.Errorf("the order has the unknown tolerance %v", key.Tolerance)
	case len(decided.Order) > 0 && key.Policy != pecanv1.Order_ORDER_PAPER_UNGUARDED && (decided.Trial == nil || decided.Trial.Refused != ""):
		return errors.New("no trial has confirmed the order")
	case !(decided.PredictedBeforeS >= 0 && decided.PredictedAfterS >= 0) || math.IsInf(decided.PredictedBeforeS+decided.PredictedAfterS, 0):
		return fmt.Errorf("the order is predicted to take %v s instead of %v s, which are no times", decided.PredictedAfterS, decided.PredictedBeforeS)
	}
	if err := cmp.Or(CheckSteps(decided.Order), CheckSteps(decided.Covers), checkWider(decided.Tolerance, decided.Wider)); err != nil {
		return err
	}
	for _, step := range decided.Covers {
		if !slices.Contains(decided.Order, step) {
			return fmt.Errorf("the decision covers step %q, which is not in its order", step)
		}
	}
	return nil
}

// applyOrderJudged adopts a piloted order, rolls an order back, or pilots it again. Earlier versions piloted some orders again whose
// rollback is final now.
func (s *State) applyOrderJudged(r *pecanv1.OrderJudged) error {
	decided := s.Decision(OrderKey{r.GetFingerprint(), r.GetPolicy(), r.GetTolerance(), r.GetPlanHash()})
	back := r.GetStage() == pecanv1.OrderStage_ORDER_STAGE_ROLLED_BACK
	switch {
	case decided.GetStage() == pecanv1.OrderStage_ORDER_STAGE_ROLLED_BACK && r.GetStage() == pecanv1.OrderStage_ORDER_STAGE_PILOTED:
	case decided == nil || len(decided.Order) == 0 || decided.Stage == pecanv1.OrderStage_ORDER_STAGE_ROLLED_BACK:
		return fmt.Errorf("the order of %q was judged, but no job runs it", r.GetFingerprint())
	case !back && (r.Stage != pecanv1.OrderStage_ORDER_STAGE_UNSPECIFIED || decided.Stage != pecanv1.OrderStage_ORDER_STAGE_PILOTED):
		return fmt.Errorf("the order of %q cannot go from stage %v to stage %v", r.Fingerprint, decided.Stage, r.Stage)
	}
	if err := checkProduction(r.Production); err != nil {
		return err
	}
	s.learn(r.Fingerprint, func(*learnedGraph) {
		switch {
		case !back:
			decided.ElementsExcused = decided.ElementsExcused || decided.MayBeExcused()
		case r.ElementsFailed:
		case r.Suspected:
			decided.Suspicions++
		default:
			decided.Suspicions = 0
		}
		decided.ElementsFailed = back && r.ElementsFailed
		decided.Stage, decided.Production, decided.Why = r.Stage, r.Production, r.Why
	})
	return nil
}

// applyOrderWidened adds to a decision what a wider tolerance would save.
func (s *State) applyOrderWidened(r *pecanv1.OrderWidened) error {
	decided := s.Decision(OrderKey{r.GetFingerprint(), r.GetPolicy(), r.GetTolerance(), r.GetPlanHash()})
	if decided == nil || decided.Wider != nil || r.Wider == nil {
		return fmt.Errorf("the order of %q is not decided, or has a wider tolerance already", r.GetFingerprint())
	}
	if err := checkWider(decided.Tolerance, r.Wider); err != nil {
		return err
	}
	s.learn(r.Fingerprint, func(*learnedGraph) { decided.Wider = r.Wider })
	return nil
}

// checkWider refuses what cannot be a wider tolerance than another one.
func checkWider(tolerance pecanv1.OrderTolerance, wider *pecanv1.WiderTolerance) error {
	if wider == nil {
		return nil
	}
	if wider.Tolerance <= tolerance || wider.Tolerance > pecanv1.OrderTolerance_ORDER_TOLERANCE_ANY || wider.Trial == nil || wider.Trial.Refused != "" {
		return fmt.Errorf("the tolerance %v is not wider than %v, or no trial has confirmed it", wider.Tolerance, tolerance)
	}
	return finite(wider.PredictedBeforeS, wider.PredictedAfterS)
}

// applyOrderSpread changes which streams of an open epoch have another order. A stream keeps its order while a worker runs it,
// and after its end.
func (s *State) applyOrderSpread(r *pecanv1.OrderSpread) error {
	job, epoch, err := s.Epoch(r.GetJobId(), r.GetEpoch())
	if err != nil {
		return err
	}
	if err := checkOrderStreams(r.Epoch, r.Order, r.OrderStreams, epoch.total); err != nil {
		return err
	}
	switch decided := s.OrderFor(job); {
	case job.Options.GetMode() == pecanv1.Mode_MODE_DETERMINISTIC && job.Options.EffectiveTolerance() > pecanv1.OrderTolerance_ORDER_TOLERANCE_EXACT:
		return fmt.Errorf("epoch %d of mode deterministic gets streams in two orders", r.Epoch)
	case len(epoch.Order) == 0 && (len(r.Order) == 0 || !slices.Equal(r.Order, decided)), len(epoch.Order) > 0 && len(r.Order) > 0 && !slices.Equal(r.Order, epoch.Order):
		return fmt.Errorf("epoch %d gets an order that is not its own, or that was not decided", r.Epoch)
	case r.OrderFrom > r.OrderBelow || r.OrderBelow > epoch.Regular() || r.OrderBelow > 0 && len(r.Order) == 0:
		return fmt.Errorf("epoch %d of %d regular streams gets an order in streams %d to %d", r.Epoch, epoch.Regular(), r.OrderFrom, r.OrderBelow)
	case len(r.Order) > 0 && len(r.OrderStreams) == 0 && r.OrderFrom == r.OrderBelow:
		return fmt.Errorf("the order of epoch %d is for none of its streams", r.Epoch)
	}
	then := &Epoch{Order: r.Order, OrderStreams: r.OrderStreams, OrderFrom: r.OrderFrom, OrderBelow: r.OrderBelow}
	for stream := range epoch.total {
		if epoch.KeepsOrder(stream) && HasOrder(epoch, stream) != HasOrder(then, stream) {
			return fmt.Errorf("stream %d of epoch %d gets another order while a worker runs it, or after its end", stream, r.Epoch)
		}
	}
	epoch.Order, epoch.OrderStreams, epoch.OrderFrom, epoch.OrderBelow = r.Order, r.OrderStreams, r.OrderFrom, r.OrderBelow
	return nil
}

func checkProduction(production *pecanv1.OrderProduction) error {
	for _, each := range []float64{production.GetRegisteredS(), production.GetOrderedS()} {
		if math.IsNaN(each) || math.IsInf(each, 0) || each < 0 {
			return fmt.Errorf("an element cannot have taken %v s in production", each)
		}
	}
	return nil
}

// CheckSteps refuses lists that cannot be the names of a dataset's steps.
func CheckSteps(order []string) error {
	if len(order) > maxSteps {
		return fmt.Errorf("the order has %d steps; at most %d are possible", len(order), maxSteps)
	}
	seen := map[string]bool{}
	for _, name := range order {
		if name == "" || seen[name] {
			return fmt.Errorf("the order has step %q, which is unnamed or repeated", name)
		}
		seen[name] = true
	}
	return nil
}

func (s *State) applyProfileLearned(profile *pecanv1.StoredProfile) error {
	if err := checkProfile(profile); err != nil {
		return err
	}
	if !s.UsesGraph(profile.Fingerprint) {
		return fmt.Errorf("the profile is of the graph %q, which no dataset has", profile.Fingerprint)
	}
	s.learn(profile.Fingerprint, func(k *learnedGraph) { k.Profiles = []*pecanv1.StoredProfile{profile} })
	return nil
}

// checkProfile refuses what cannot be a profile.
func checkProfile(profile *pecanv1.StoredProfile) error {
	if profile.GetFingerprint() == "" {
		return errors.New("the profile has no fingerprint of a graph")
	}
	if err := CheckSteps(profile.GetOther().GetOrder()); err != nil {
		return err
	}
	if share := profile.GetCpuWait(); !(share >= 0 && share <= 1) {
		return fmt.Errorf("the profile says that threads wait for a core in %v of their time, which is no share", share)
	}
	return cmp.Or(checkNodes(profile.Nodes), checkNodes(profile.GetOther().GetNodes()))
}

func checkNodes(nodes []*pecanv1.NodeMetrics) error {
	if len(nodes) > jobmetrics.MaxNodes {
		return fmt.Errorf("the profile has %d nodes; at most %d are possible", len(nodes), jobmetrics.MaxNodes)
	}
	before := ""
	for _, node := range nodes {
		// This also refuses a node without a name.
		if node.GetNode() <= before {
			return fmt.Errorf("the profile lists node %q after %q, but names must ascend", node.GetNode(), before)
		}
		if cpu := node.SelfCpuS; math.IsNaN(cpu) || math.IsInf(cpu, 0) || cpu < 0 {
			return fmt.Errorf("the profile has node %q with %v s, which is no time", node.Node, cpu)
		}
		if err := checkNodes(node.Inside); err != nil {
			return err
		}
		before = node.Node
	}
	return nil
}
