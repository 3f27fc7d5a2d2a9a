package provision

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strconv"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

const (
	// costAnnotation is read by the ReplicaSet controller, which deletes the pod with the lowest cost first.
	costAnnotation = "controller.kubernetes.io/pod-deletion-cost"
	costOfLeaving  = "-1000"
	// leavingAnnotation holds the time of the mark, so that a restarted dispatcher finds it.
	leavingAnnotation = "pecan/leaving-since"
	// settle is the time in which the controllers of Kubernetes see the mark of a pod. The scale changes after it.
	settle = 2 * time.Second
	// callTimeout bounds one call to the API server.
	callTimeout = 5 * time.Second
)

// Kubernetes runs workers as pods of a Deployment or StatefulSet, through its scale subresource.
type Kubernetes struct {
	api   *kubeAPI
	rules rules
	log   *slog.Logger
	now   func() time.Time
	// shortSince and last are what is remembered between calls.
	shortSince time.Time
	last       State
}

// openKubernetes reads KIND/NAME or KIND/NAME.NAMESPACE.
func openKubernetes(workload string, o Options) (Provider, error) {
	kind, name, found := strings.Cut(workload, "/")
	if !found || name == "" {
		return nil, fmt.Errorf("the provider kubernetes:%s names no workload: use %s", workload, workloads)
	}
	loading := clientcmd.NewDefaultClientConfigLoadingRules()
	loading.ExplicitPath = o.Kubeconfig
	config := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(loading, &clientcmd.ConfigOverrides{})
	name, namespace, _ := strings.Cut(name, ".")
	if namespace == "" {
		var err error
		if namespace, _, err = config.Namespace(); err != nil {
			return nil, fmt.Errorf("find the namespace of the workers: %w", err)
		}
	}
	cluster, err := config.ClientConfig()
	if err != nil {
		return nil, fmt.Errorf("find the Kubernetes cluster of the workers: %w", err)
	}
	return NewKubernetes(cluster, kind, namespace, name, o)
}

// NewKubernetes returns the provider for the workload of that kind, deployment or statefulset.
func NewKubernetes(cluster *rest.Config, kind, namespace, name string, o Options) (*Kubernetes, error) {
	api, err := newKubeAPI(cluster, kind, namespace, name)
	if err != nil {
		return nil, err
	}
	times := rules{settle: settle, patience: cmp.Or(o.Patience, DefaultPatience)}
	k := &Kubernetes{api: api, rules: times, log: o.Log, now: time.Now}
	if k.log == nil {
		k.log = slog.New(slog.DiscardHandler)
	}
	return k, nil
}

// Observe reads the workload and its pods.
func (k *Kubernetes) Observe(ctx context.Context) (State, error) {
	o, err := k.observe(ctx)
	if err != nil {
		return k.last, err
	}
	marked := 0
	for _, m := range o.machines {
		if m.phase != ending && !m.marked.IsZero() {
			marked++
		}
	}
	k.last = describe(o, max(o.replicas-marked, 0), nil, k.now(), k.rules)
	return k.last, nil
}

// Reconcile marks, scales and deletes, in this order. It may be repeated after an error.
func (k *Kubernetes) Reconcile(ctx context.Context, desired int, leaving []Address) (State, error) {
	o, err := k.observe(ctx)
	if err != nil {
		return k.last, err
	}
	now := k.now()
	act := plan(o, desired, leaving, now, k.rules)
	err = k.apply(ctx, &o, act, now)
	k.noteShort(&o, now)
	k.last = describe(o, desired, leaving, now, k.rules)
	k.last.Why = cmp.Or(k.last.Why, act.why)
	return k.last, err
}

// Close does nothing: the workers stay.
func (k *Kubernetes) Close() error { return nil }

// apply makes the changes in an order in which no wrong pod is removed: marks first, then the number of replicas, then pods
// by name.
func (k *Kubernetes) apply(ctx context.Context, o *observed, act actions, now time.Time) error {
	var failed []error
	for _, name := range act.mark {
		mark := map[string]any{costAnnotation: costOfLeaving, leavingAnnotation: now.UTC().Format(time.RFC3339Nano)}
		failed = append(failed, k.api.annotate(ctx, name, mark))
	}
	for _, name := range act.unmark {
		failed = append(failed, k.api.annotate(ctx, name, map[string]any{costAnnotation: nil, leavingAnnotation: nil}))
	}
	if err := errors.Join(failed...); err != nil {
		return err
	}
	if act.replicas != o.replicas {
		if err := k.api.setScale(ctx, act.replicas); err != nil {
			return err
		}
		k.log.Info("the provider scaled workers", "workload", k.api.String(), "from", o.replicas, "to", act.replicas)
		o.replicas = act.replicas
	}
	for _, name := range act.remove {
		if err := k.api.deletePod(ctx, name); err != nil {
			return err
		}
		k.log.Info("the provider removed a worker", "pod", name)
	}
	return nil
}

func (k *Kubernetes) observe(ctx context.Context) (observed, error) {
	w, err := k.api.workload(ctx)
	if err != nil {
		return observed{}, err
	}
	pods, err := k.api.pods(ctx, w.selector)
	if err != nil {
		return observed{}, err
	}
	o := observed{replicas: w.replicas, refused: w.refused, ordered: k.api.ordered}
	for i := range pods {
		if m, alive := machineOf(&pods[i]); alive {
			o.machines = append(o.machines, m)
		}
	}
	k.noteShort(&o, k.now())
	return o, nil
}

// noteShort remembers since when pods are requested that do not exist.
func (k *Kubernetes) noteShort(o *observed, now time.Time) {
	existing := 0
	for _, m := range o.machines {
		if m.phase != ending {
			existing++
		}
	}
	switch {
	case o.replicas <= existing:
		k.shortSince = time.Time{}
	case k.shortSince.IsZero():
		k.shortSince = now
	}
	o.shortSince = k.shortSince
}

// machineOf reads a pod. A pod that has ended is not alive.
func machineOf(pod *corev1.Pod) (machine, bool) {
	m := machine{name: pod.Name, created: pod.CreationTimestamp.Time, hosts: []string{pod.Name}}
	if pod.Status.PodIP != "" {
		m.hosts = []string{pod.Status.PodIP, pod.Name}
	}
	if pod.Spec.Subdomain != "" {
		short := pod.Name + "." + pod.Spec.Subdomain
		m.hosts = append(m.hosts, short, short+"."+pod.Namespace+".svc.cluster.local")
	}
	// A mark that cannot be read counts as old.
	if text, marked := pod.Annotations[leavingAnnotation]; marked {
		m.marked, _ = time.Parse(time.RFC3339Nano, text)
		if m.marked.IsZero() {
			m.marked = pod.CreationTimestamp.Time
		}
	}
	if at := strings.LastIndexByte(pod.Name, '-'); at >= 0 {
		m.ordinal, _ = strconv.Atoi(pod.Name[at+1:])
	}
	switch {
	case pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed:
		return m, false
	case pod.DeletionTimestamp != nil:
		m.phase = ending
		return m, true
	}
	for _, c := range pod.Status.Conditions {
		switch {
		case c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue:
			m.phase = ready
		case c.Type == corev1.PodScheduled && c.Status == corev1.ConditionFalse && c.Reason == corev1.PodReasonUnschedulable:
			m.stuck = "no node has room: " + oneLine(c.Message)
		}
	}
	for _, c := range pod.Status.ContainerStatuses {
		if w := c.State.Waiting; w != nil && !passing[w.Reason] {
			m.stuck = oneLine(w.Reason + " " + w.Message)
		}
	}
	return m, true
}

// passing are the reasons for which a container waits and which pass by themselves.
var passing = map[string]bool{"": true, "ContainerCreating": true, "PodInitializing": true}

func oneLine(text string) string { return strings.Join(strings.Fields(text), " ") }

// refusal returns why the controller of a Deployment creates no pods, for example a quota.
func refusal(d *appsv1.Deployment) string {
	for _, c := range d.Status.Conditions {
		if c.Type == appsv1.DeploymentReplicaFailure && c.Status == corev1.ConditionTrue {
			return oneLine(c.Message)
		}
	}
	return ""
}
