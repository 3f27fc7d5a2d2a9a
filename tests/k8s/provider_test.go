package k8s_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/retry"

	"github.com/pecan-ml/pecan/service/provision"
)

// pool is a workload of pods that sleep, with a provider for it.
type pool struct {
	*cluster
	kind, name string
	provider   provision.Provider
}

func (c *cluster) pool(t *testing.T, kind, name string, replicas int32) *pool {
	t.Helper()
	labels := map[string]string{"app": name}
	none := int64(1)
	template := corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: corev1.PodSpec{TerminationGracePeriodSeconds: &none, Containers: []corev1.Container{{
		Name: "sleep", Image: "local/sleep:0", Command: []string{"sleep", "10000"}, Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{"cpu": resource.MustParse("1")}},
	}}}}
	selector := &metav1.LabelSelector{MatchLabels: labels}
	var err error
	if kind == "deployment" {
		_, err = c.client.AppsV1().Deployments("default").Create(t.Context(), &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Name: name},
			Spec: appsv1.DeploymentSpec{Replicas: &replicas, Selector: selector, Template: template}}, metav1.CreateOptions{})
	} else {
		_, err = c.client.AppsV1().StatefulSets("default").Create(t.Context(), &appsv1.StatefulSet{ObjectMeta: metav1.ObjectMeta{Name: name},
			Spec: appsv1.StatefulSetSpec{Replicas: &replicas, Selector: selector, Template: template, ServiceName: name, PodManagementPolicy: appsv1.ParallelPodManagement}}, metav1.CreateOptions{})
	}
	check(t, err)
	p := &pool{cluster: &cluster{plane: c.plane, kubelet: c.kubelet, t: t}, kind: kind, name: name}
	p.restart()
	return p
}

// restart makes a new provider, as a dispatcher that starts again does.
func (p *pool) restart() {
	p.t.Helper()
	var err error
	p.provider, err = provision.Open("kubernetes:"+p.kind+"/"+p.name+".default", provision.Options{Kubeconfig: p.kubeconfig})
	check(p.t, err)
}

// members are the pods that do not end, by their identity.
func (p *pool) members() map[types.UID]corev1.Pod {
	p.t.Helper()
	list, err := p.client.CoreV1().Pods("default").List(p.t.Context(), metav1.ListOptions{LabelSelector: "app=" + p.name})
	check(p.t, err)
	all := map[types.UID]corev1.Pod{}
	for _, pod := range list.Items {
		if pod.DeletionTimestamp == nil {
			all[pod.UID] = pod
		}
	}
	return all
}

// remove makes room on the node.
func (p *pool) remove() {
	p.t.Helper()
	check(p.t, p.client.AppsV1().Deployments("default").Delete(p.t.Context(), p.name, metav1.DeleteOptions{}))
	until(p.t, "its pods are gone", func() error {
		if n := len(p.members()); n > 0 {
			return fmt.Errorf("%d pods", n)
		}
		return nil
	})
}

// settle reconciles until the state is right.
func (p *pool) settle(what string, desired int, leaving []provision.Address, right func(provision.State) bool) provision.State {
	p.t.Helper()
	var state provision.State
	until(p.t, what, func() error {
		var err error
		state, err = p.provider.Reconcile(p.t.Context(), desired, leaving)
		if err == nil && !right(state) {
			err = fmt.Errorf("%v", state)
		}
		return err
	})
	return state
}

func quiet(n int) func(provision.State) bool {
	return func(s provision.State) bool {
		return s.Ready == n && s.Requested+s.Pending+s.Stuck+len(s.Leaving) == 0
	}
}

// oldest returns a pod that Kubernetes would remove last.
func oldest(members map[types.UID]corev1.Pod) corev1.Pod {
	var all []corev1.Pod
	for _, pod := range members {
		all = append(all, pod)
	}
	slices.SortFunc(all, func(a, b corev1.Pod) int { return a.CreationTimestamp.Compare(b.CreationTimestamp.Time) })
	return all[0]
}

func addressOf(pod corev1.Pod) provision.Address {
	return provision.Address(pod.Status.PodIP + ":5051")
}

// exactly fails unless the pods of before without gone are left, and added new ones.
func (p *pool) exactly(before map[types.UID]corev1.Pod, gone []corev1.Pod, added int) {
	p.t.Helper()
	after := p.members()
	if len(after) != len(before)-len(gone)+added {
		p.t.Errorf("%d pods before, %d after", len(before), len(after))
	}
	for uid, pod := range before {
		left := slices.ContainsFunc(gone, func(g corev1.Pod) bool { return g.UID == uid })
		if _, there := after[uid]; there == left {
			p.t.Errorf("%s: should have left: %v, is there: %v", pod.Name, left, there)
		}
	}
}

func TestTheProviderRemovesTheChosenPod(t *testing.T) {
	c := start(t, "12")
	t.Run("deployment", func(t *testing.T) {
		p := c.pool(t, "deployment", "chosen", 1)
		p.settle("four are ready", 4, nil, quiet(4))
		before := p.members()
		victim := oldest(before)
		leaving := []provision.Address{addressOf(victim)}
		p.settle("the oldest is marked", 3, leaving, func(s provision.State) bool { return len(s.Leaving) == 1 && s.Ready == 3 })
		// The dispatcher restarts in the middle. It finds what it had begun.
		p.restart()
		found, err := p.provider.Observe(t.Context())
		if err != nil || found.Desired != 3 || len(found.Leaving) != 1 || !found.Leaving[0].Same(leaving[0]) {
			t.Fatalf("%v %v, want that %v leaves", found, err, leaving)
		}
		p.settle("it is gone", found.Desired, found.Leaving, quiet(3))
		p.exactly(before, []corev1.Pod{victim}, 0)
	})
	t.Run("one is replaced", func(t *testing.T) {
		p := c.pool(t, "deployment", "replaced", 2)
		p.settle("two are ready", 2, nil, quiet(2))
		before := p.members()
		victim := oldest(before)
		p.settle("another one is there", 2, []provision.Address{addressOf(victim)}, quiet(2))
		p.exactly(before, []corev1.Pod{victim}, 1)
	})
	t.Run("two at once", func(t *testing.T) {
		p := c.pool(t, "deployment", "two", 4)
		p.settle("four are ready", 4, nil, quiet(4))
		before := p.members()
		first := oldest(before)
		rest := p.members()
		delete(rest, first.UID)
		second := oldest(rest)
		p.settle("two are left", 2, []provision.Address{addressOf(first), addressOf(second)}, quiet(2))
		p.exactly(before, []corev1.Pod{first, second}, 0)
	})
	t.Run("nobody is chosen", func(t *testing.T) {
		p := c.pool(t, "deployment", "nobody", 2)
		p.settle("two are ready", 2, nil, quiet(2))
		before := p.members()
		for range 5 {
			s, err := p.provider.Reconcile(t.Context(), 1, nil)
			if err != nil || s.Ready != 2 || !strings.Contains(s.Why, "asked to leave") {
				t.Fatalf("%v %v", s, err)
			}
			time.Sleep(200 * time.Millisecond)
		}
		p.exactly(before, nil, 0)
	})
	t.Run("statefulset", func(t *testing.T) {
		p := c.pool(t, "statefulset", "ordered", 1)
		s := p.settle("three are ready", 3, nil, quiet(3))
		before := p.members()
		if !s.Ordered || len(s.Removable) != 3 {
			t.Fatalf("%+v", s)
		}
		first := s.Removable[2:]
		s = p.settle("the first one cannot be removed", 2, first, func(s provision.State) bool { return s.Why != "" && len(s.Leaving) == 1 })
		if !strings.Contains(s.Why, "ordered-2 must leave first") {
			t.Errorf("%v", s)
		}
		time.Sleep(3 * time.Second)
		s = p.settle("it stays", 3, nil, quiet(3))
		p.exactly(before, nil, 0)
		var last corev1.Pod
		for _, pod := range before {
			if pod.Name == "ordered-2" {
				last = pod
			}
		}
		p.settle("the last one is gone", 2, s.Removable[:1], quiet(2))
		p.exactly(before, []corev1.Pod{last}, 0)
	})
}

func TestTheProviderDoesNotWaitForWhatCannotBeGiven(t *testing.T) {
	c := start(t, "6")
	t.Run("no room", func(t *testing.T) {
		p := c.pool(t, "deployment", "room", 2)
		p.settle("two are ready", 2, nil, quiet(2))
		before := p.members()
		s := p.settle("the rest is stuck", 9, nil, func(s provision.State) bool { return s.Ready == 6 && s.Stuck == 3 })
		if s.Expected() != 6 || !strings.Contains(s.Why, "no node has room") || !strings.Contains(s.Why, "Insufficient cpu") {
			t.Errorf("%v", s)
		}
		// The request is withdrawn. No pod that is ready goes.
		p.settle("the request is withdrawn", 6, nil, quiet(6))
		for uid, pod := range before {
			if _, there := p.members()[uid]; !there {
				t.Errorf("%s went", pod.Name)
			}
		}
		p.remove()
	})
	t.Run("a quota", func(t *testing.T) {
		p := c.pool(t, "deployment", "quota", 1)
		p.settle("one is ready", 1, nil, quiet(1))
		_, err := c.client.CoreV1().ResourceQuotas("default").Create(t.Context(), &corev1.ResourceQuota{ObjectMeta: metav1.ObjectMeta{Name: "few"},
			Spec: corev1.ResourceQuotaSpec{Hard: corev1.ResourceList{"pods": resource.MustParse("2")}}}, metav1.CreateOptions{})
		check(t, err)
		until(t, "the quota has counted", func() error {
			quota, err := c.client.CoreV1().ResourceQuotas("default").Get(t.Context(), "few", metav1.GetOptions{})
			if used := quota.Status.Used["pods"]; err == nil && used.Value() == 0 {
				err = fmt.Errorf("not yet")
			}
			return err
		})
		s := p.settle("the rest is refused", 4, nil, func(s provision.State) bool { return s.Ready == 2 && s.Stuck == 2 })
		if s.Requested != 2 || s.Expected() != 2 || !strings.Contains(s.Why, "exceeded quota") {
			t.Errorf("%v", s)
		}
		check(t, c.client.CoreV1().ResourceQuotas("default").Delete(t.Context(), "few", metav1.DeleteOptions{}))
		p.remove()
	})
	t.Run("an image that is missing", func(t *testing.T) {
		p := c.pool(t, "deployment", "image", 0)
		// The controller may change the deployment in between.
		check(t, retry.RetryOnConflict(retry.DefaultRetry, func() error {
			d, err := c.client.AppsV1().Deployments("default").Get(t.Context(), "image", metav1.GetOptions{})
			if err != nil {
				return err
			}
			d.Spec.Template.Spec.Containers[0].Image = "local/absent:1"
			_, err = c.client.AppsV1().Deployments("default").Update(t.Context(), d, metav1.UpdateOptions{})
			return err
		}))
		s := p.settle("it is stuck", 1, nil, func(s provision.State) bool { return s.Stuck == 1 })
		if s.Pending != 1 || !strings.Contains(s.Why, "ErrImagePull") {
			t.Errorf("%v", s)
		}
		p.remove()
	})
	t.Run("no API server", func(t *testing.T) {
		p := c.pool(t, "deployment", "absent", 1)
		p.settle("one is ready", 1, nil, quiet(1))
		c.stopAPI()
		started := time.Now()
		s, err := p.provider.Reconcile(t.Context(), 3, nil)
		if err == nil || s.Ready != 1 || time.Since(started) > 20*time.Second {
			t.Errorf("%v %v after %s", s, err, time.Since(started))
		}
		p.startAPI()
		p.settle("two are ready", 2, nil, quiet(2))
	})
}
