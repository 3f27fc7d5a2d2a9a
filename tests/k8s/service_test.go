package k8s_test

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"
)

func TestTheChartRunsAService(t *testing.T) {
	c := start(t, "64")
	ctx := t.Context()
	c.showLogs()
	cache := c.path("cache/pecan")
	check(t, os.MkdirAll(cache, 0o777))
	check(t, os.Chmod(cache, 0o777))
	check(t, os.Chmod(c.path("cache"), 0o755))
	values := append(slices.Clone(values), "--set", "cache.hostPath="+cache)
	c.makeVolume("state")

	c.helm(append([]string{"install", "pecan", chart(), "-n", space, "--create-namespace", "--wait", "--timeout", "4m"}, values...)...)
	c.workersAre(1)
	c.startTrainer()
	c.moreEpochs("with one worker")

	t.Log("scale from 1 to 8")
	started := time.Now()
	out, err := c.scale(8)
	if err != nil || !strings.Contains(out, "8 desired: 8 ready") {
		t.Fatalf("%v: %s", err, out)
	}
	t.Logf("scaled after %.1f s:\n%s", time.Since(started).Seconds(), out)
	c.workersAre(8)
	c.moreEpochs("with eight workers")

	t.Log("the API server is absent while the service scales down to 2")
	c.stopAPI()
	type result struct {
		out string
		err error
	}
	scaled := make(chan result, 1)
	go func() {
		out, err := c.scale(2)
		scaled <- result{out, err}
	}()
	c.moreEpochs("without an API server")
	select {
	case r := <-scaled:
		t.Fatalf("scaled without an API server: %s %v", r.out, r.err)
	default:
	}
	c.startAPI()
	r := <-scaled
	if r.err != nil || !strings.Contains(r.out, "trying again") || !strings.Contains(r.out, "2 desired: 2 ready, 0 pending, 0 requested, 0 leaving") {
		t.Fatalf("%v: %s", r.err, r.out)
	}
	t.Logf("scaled with the API server back:\n%s", r.out)
	c.workersAre(2)
	c.moreEpochs("with two workers")

	t.Log("a worker's pod is evicted; the budget refuses a second one")
	workers := c.podsOf("worker")
	c.evict(workers[0])
	if err := c.tryEvict(workers[1].Name); !apierrors.IsTooManyRequests(err) {
		t.Errorf("a second eviction at the same time: %v", err)
	}
	c.moreEpochs("after the eviction")
	c.workersAre(2)
	c.gone(workers[0])

	t.Log("the dispatcher is killed, and then its pod is replaced")
	c.killIn("pecan-dispatcher-0")
	c.moreEpochs("after the death of the dispatcher")
	c.replaceDispatcher()
	c.workersAre(2)
	c.moreEpochs("after the replacement of the dispatcher")

	t.Log("an upgrade replaces the workers and keeps their number")
	before := c.podsOf("worker")
	c.helm(append(append([]string{"upgrade", "pecan", chart(), "-n", space, "--wait", "--timeout", "6m"}, values...), "--set", "workers.graceSeconds=11")...)
	c.workersAre(2)
	for _, p := range c.podsOf("worker") {
		if slices.ContainsFunc(before, func(b corev1.Pod) bool { return b.UID == p.UID }) {
			t.Errorf("%s was not replaced", p.Name)
		}
	}
	c.moreEpochs("after the upgrade")

	t.Log("the example job trains")
	text, err := os.ReadFile(filepath.Join(os.Getenv("PECAN_ROOT"), "deploy/examples/job.yaml"))
	check(t, err)
	var job batchv1.Job
	check(t, yaml.UnmarshalStrict(text, &job))
	job.Spec.Template.Spec.Containers[0].Args[1] = "--elements=320"
	_, err = c.client.BatchV1().Jobs(space).Create(ctx, &job, metav1.CreateOptions{})
	check(t, err)
	until(t, "the example job has ended", func() error {
		got, err := c.client.BatchV1().Jobs(space).Get(ctx, job.Name, metav1.GetOptions{})
		if err == nil && got.Status.Succeeded != 1 {
			err = fmt.Errorf("%+v", got.Status)
		}
		return err
	})

	t.Log("the trainer ends by itself, and the release is removed")
	c.endTrainer()
	c.uninstall()
	if _, err := c.client.CoreV1().PersistentVolumeClaims(space).Get(ctx, "state-pecan-dispatcher-0", metav1.GetOptions{}); err != nil {
		t.Errorf("the state went with the release: %v", err)
	}
}

// The API server checks what each set of values renders. A wrong value is refused with its name.
func TestTheChartRenders(t *testing.T) {
	c := start(t, "64")
	c.helm("lint", "--strict", chart())
	for name, set := range map[string][]string{
		"defaults":          nil,
		"no storage":        {"--set", "dispatcher.storage.enabled=false"},
		"a cache claim":     {"--set", "cache.enabled=true", "--set", "cache.size=100Gi", "--set", "cache.className=shared", "--set", "cache.bytes=1000000000000"},
		"a cache of others": {"--set", "cache.enabled=true", "--set", "cache.existingClaim=mine"},
		"a load balancer": {"--set", "dispatcher.service.type=LoadBalancer", "--set", "dispatcher.service.sourceRanges={10.0.0.0/8}",
			"--set-json", `networkPolicy.trainers=[{"ipBlock":{"cidr":"10.0.0.0/8"}}]`, "--set-json", `networkPolicy.metrics=[{"namespaceSelector":{}}]`},
		"nothing optional": {"--set", "networkPolicy.enabled=false", "--set", "scaling.enabled=false", "--set", "metricsAnnotations=false", "--set", "ipFamily=IPv6"},
		"scaling":          {"--set", "scaling.automatic.enabled=true", "--set", "scaling.automatic.maxWorkers=64"},
		"prices":           {"--set-json", `dispatcher.prices={"currency":"USD","trainers":{"t":{"per_hour":4.96}},"workers":{"w":{"per_hour":0.42}}}`},
		"tenants":          {"--set-json", `dispatcher.tenants={"tenants":{"vision":{"weight":3,"cache_bytes":2e12}}}`, "--set", "metricsAnnotations=false"},
		"data":             {"--set-json", `data=[{"name":"a","mountPath":"/data/a","source":{"persistentVolumeClaim":{"claimName":"a","readOnly":true}}},{"name":"b","mountPath":"/b","source":{"nfs":{"server":"s","path":"/x"}}}]`},
		"scheduling": {"--set-json", `workers.nodeSelector={"pool":"spot"}`, "--set-json", `workers.tolerations=[{"key":"spot","operator":"Exists"}]`,
			"--set-json", `dispatcher.affinity={"nodeAffinity":{}}`, "--set-json", `image.pullSecrets=[{"name":"s"}]`, "--set-json", `workers.podAnnotations={"a":"b"}`},
	} {
		t.Run(name, func(t *testing.T) {
			c := &cluster{plane: c.plane, kubelet: c.kubelet, t: t}
			args := append([]string{"template", "pecan", chart(), "-n", "default", "--validate"}, set...)
			text := c.helm(args...)
			checkRendered(t, text)
			// The API server applies the types' validation, and answers with a warning for an unknown field.
			out := c.helm(append([]string{"install", "pecan", chart(), "-n", "default", "--dry-run=server"}, set...)...)
			if strings.Contains(strings.ToLower(out), "warning") {
				t.Errorf("%s", out)
			}
		})
	}
	for wrong, want := range map[string]string{
		"workers.replica=3":                                    "replica",
		"workers.replicas=-1":                                  "replicas",
		"workers.graceSeconds=2":                               "graceSeconds",
		"dispatcher.port=70000":                                "port",
		"cache.enabled=true":                                   "cache.enabled needs cache.existingClaim",
		"image.pullPolicy=Whenever":                            "pullPolicy",
		"scaling.enabled=false,scaling.automatic.enabled=true": "scaling.automatic needs scaling.enabled",
	} {
		out, err := c.tryHelm("template", "pecan", chart(), "--kube-version", "1.37.0", "--set", wrong)
		if err == nil || !strings.Contains(out, want) {
			t.Errorf("%s: %v: %s", wrong, err, out)
		}
	}
}

// checkRendered checks what operators rely on.
func checkRendered(t *testing.T, text string) {
	t.Helper()
	kinds := map[string]int{}
	for _, document := range strings.Split(text, "\n---\n") {
		var head metav1.TypeMeta
		check(t, yaml.Unmarshal([]byte(document), &head))
		kinds[head.Kind]++
		var spec corev1.PodSpec
		switch head.Kind {
		case "Deployment":
			var d appsv1.Deployment
			check(t, yaml.UnmarshalStrict([]byte(document), &d))
			spec = d.Spec.Template.Spec
			drain := regexp.MustCompile(`--drain-timeout=(\d+)s`).FindStringSubmatch(strings.Join(spec.Containers[0].Args, " "))
			if drain == nil || fmt.Sprint(*spec.TerminationGracePeriodSeconds) <= drain[1] {
				t.Errorf("the grace period %d is not above the drain timeout %v", *spec.TerminationGracePeriodSeconds, drain)
			}
		case "StatefulSet":
			var s appsv1.StatefulSet
			check(t, yaml.UnmarshalStrict([]byte(document), &s))
			spec = s.Spec.Template.Spec
		default:
			continue
		}
		one := spec.Containers[0]
		if one.ReadinessProbe.HTTPGet.Path != "/readyz" || one.LivenessProbe.HTTPGet.Path != "/healthz" || *one.SecurityContext.AllowPrivilegeEscalation {
			t.Errorf("%s: %+v", head.Kind, one)
		}
	}
	if kinds["StatefulSet"] != 1 || kinds["Deployment"] != 1 || kinds["PodDisruptionBudget"] != 1 || kinds["Service"] != 2 {
		t.Errorf("%v", kinds)
	}
}
