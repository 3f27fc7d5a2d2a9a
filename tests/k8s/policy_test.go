package k8s_test

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"sigs.k8s.io/yaml"
)

// rendered are the objects of the chart that decide who may connect: the policies, and the pods of each component.
type rendered struct {
	policies []networkingv1.NetworkPolicy
	pods     map[string]corev1.PodTemplateSpec
}

func render(t *testing.T, set ...string) rendered {
	t.Helper()
	p := &plane{t: t, dir: t.TempDir(), programs: programs(t)}
	c := &cluster{plane: p, t: t}
	text := c.helm(append([]string{"template", "pecan", chart(), "-n", space, "--kube-version", "1.37.0"}, set...)...)
	r := rendered{pods: map[string]corev1.PodTemplateSpec{}}
	for _, document := range strings.Split(text, "\n---\n") {
		var one struct {
			metav1.TypeMeta
			Spec struct{ Template corev1.PodTemplateSpec }
		}
		check(t, yaml.Unmarshal([]byte(document), &one))
		switch one.Kind {
		case "NetworkPolicy":
			var policy networkingv1.NetworkPolicy
			check(t, yaml.UnmarshalStrict([]byte(document), &policy))
			r.policies = append(r.policies, policy)
		case "Deployment", "StatefulSet":
			r.pods[one.Spec.Template.Labels["app.kubernetes.io/component"]] = one.Spec.Template
		}
	}
	return r
}

// admits reports whether a pod of the namespace with these labels may connect to a named port of a component. It decides like
// Kubernetes: if a policy selects the component, one of its rules must admit the pod.
func (r rendered) admits(t *testing.T, from map[string]string, component, port string) bool {
	t.Helper()
	selects := func(s *metav1.LabelSelector, of map[string]string) bool {
		selector, err := metav1.LabelSelectorAsSelector(s)
		check(t, err)
		return selector.Matches(labels.Set(of))
	}
	isolated := false
	for _, policy := range r.policies {
		if !selects(&policy.Spec.PodSelector, r.pods[component].Labels) {
			continue
		}
		isolated = true
		for _, rule := range policy.Spec.Ingress {
			for _, p := range rule.Ports {
				for _, peer := range rule.From {
					if p.Port.StrVal == port && peer.NamespaceSelector == nil && peer.PodSelector != nil && selects(peer.PodSelector, from) {
						return true
					}
				}
			}
		}
	}
	return !isolated
}

// Nothing here enforces policies, so their rules are compared with the connections that the programs make.
func TestTheNetworkPolicyAdmitsTheConnectionsOfThePrograms(t *testing.T) {
	r := render(t)
	dispatcher, worker := r.pods["dispatcher"].Labels, r.pods["worker"].Labels
	trainer, stranger := map[string]string{"pecan-client": "true"}, map[string]string{"app": "other"}
	for _, c := range []struct {
		name            string
		from            map[string]string
		component, port string
		want            bool
	}{
		{"a worker registers", worker, "dispatcher", "grpc", true},
		{"pecanctl in the dispatcher's pod", dispatcher, "dispatcher", "grpc", true},
		{"a trainer asks for a job", trainer, "dispatcher", "grpc", true},
		{"a trainer reads elements", trainer, "worker", "elements", true},
		{"a closing stream reads the short batches of other workers", worker, "worker", "elements", true},
		{"another pod asks for a job", stranger, "dispatcher", "grpc", false},
		{"another pod reads elements", stranger, "worker", "elements", false},
		{"a trainer reads metrics", trainer, "worker", "metrics", false},
	} {
		ports := map[string]bool{}
		for _, p := range r.pods[c.component].Spec.Containers[0].Ports {
			ports[p.Name] = true
		}
		if got := r.admits(t, c.from, c.component, c.port); got != c.want || !ports[c.port] {
			t.Errorf("%s: admitted %v, want %v; the ports are %v", c.name, got, c.want, ports)
		}
	}
	if open := render(t, "--set", "networkPolicy.enabled=false"); len(open.policies) != 0 || !open.admits(t, stranger, "worker", "elements") {
		t.Error("without the policy, another pod may not connect")
	}
}
