package k8s_test

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"
)

const space = "pecan"

// makeImages writes the programs of each image, as deploy/containers/Containerfile installs them.
func makeImages(t *testing.T, dir string) string {
	t.Helper()
	bin, venv := "/opt/repository/python/pecan/_bin/", "/opt/repository/.venv/"
	tensorflow, err := filepath.Glob(filepath.Join(os.Getenv("PECAN_ROOT"), ".venv/lib/python3*/site-packages/tensorflow"))
	if err != nil || len(tensorflow) != 1 {
		t.Fatalf("no TensorFlow in .venv: %v %v", tensorflow, err)
	}
	inside := strings.Replace(tensorflow[0], os.Getenv("PECAN_ROOT"), "/opt/repository", 1)
	python := "PYTHONPATH=/opt/repository/python PYTHONDONTWRITEBYTECODE=1 TF_CPP_MIN_LOG_LEVEL=3 exec " + venv + "bin/python"
	for image, programs := range map[string]map[string]string{
		"pecan-dispatcher": {"pecan-dispatcher": "exec " + bin + "pecan-dispatcher", "pecanctl": "exec " + bin + "pecanctl"},
		"pecan-worker":     {"pecan-worker": "LD_LIBRARY_PATH=" + inside + " TF_CPP_MIN_LOG_LEVEL=2 exec " + bin + "pecan-worker"},
		"pecan-client":     {"python": python},
		"sleep":            {},
	} {
		at := filepath.Join(dir, image, "usr/local/bin")
		check(t, os.MkdirAll(at, 0o755))
		for name, command := range programs {
			check(t, os.WriteFile(filepath.Join(at, name), []byte("#!/bin/sh\n"+command+` "$@"`+"\n"), 0o755))
		}
		if image == "pecan-client" {
			text, err := os.ReadFile(filepath.Join(os.Getenv("PECAN_ROOT"), "deploy/examples/train.py"))
			check(t, err)
			check(t, os.MkdirAll(filepath.Join(dir, image, "opt/pecan"), 0o755))
			check(t, os.WriteFile(filepath.Join(dir, image, "opt/pecan/train.py"), text, 0o644))
		}
	}
	return dir
}

// cluster is a control plane with a node.
type cluster struct {
	*plane
	*kubelet
	t *testing.T
}

func start(t *testing.T, cpus string) *cluster {
	t.Helper()
	p := startPlane(t)
	return &cluster{plane: p, kubelet: startKubelet(t, p, makeImages(t, p.path("images")), cpus), t: t}
}

// helm runs helm, which must succeed.
func (c *cluster) helm(args ...string) string {
	c.t.Helper()
	out, err := c.tryHelm(args...)
	if err != nil {
		c.t.Fatalf("helm %s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return out
}

func (c *cluster) tryHelm(args ...string) (string, error) {
	cmd := exec.Command(filepath.Join(c.programs, "helm"), args...)
	cmd.Env = append(os.Environ(), "KUBECONFIG="+c.kubeconfig, "HELM_CACHE_HOME="+c.path("helm"), "HELM_CONFIG_HOME="+c.path("helm"), "HELM_DATA_HOME="+c.path("helm"))
	out, err := cmd.CombinedOutput()
	return string(out), err
}

func chart() string { return filepath.Join(os.Getenv("PECAN_ROOT"), "deploy/helm/pecan") }

// values are those that the test gives to the chart.
var values = []string{
	"--set", "image.registry=local", "--set", "workers.replicas=1", "--set", "workers.drainTimeoutSeconds=10", "--set", "workers.graceSeconds=10",
	"--set", "workers.args={--max-streams=2,--threads=1}", "--set", "workers.resources.requests.cpu=1", "--set", "cache.enabled=true",
	"--set-json", `data=[{"name":"numbers","mountPath":"/data/numbers","source":{"emptyDir":{}}}]`,
}

// podsOf lists the pods of a component that do not end.
func (c *cluster) podsOf(component string) []corev1.Pod {
	c.t.Helper()
	list, err := c.client.CoreV1().Pods(space).List(c.t.Context(), metav1.ListOptions{LabelSelector: "app.kubernetes.io/component=" + component})
	check(c.t, err)
	return slices.DeleteFunc(list.Items, func(p corev1.Pod) bool { return p.DeletionTimestamp != nil })
}

func isReady(p corev1.Pod) bool {
	return slices.ContainsFunc(p.Status.Conditions, func(c corev1.PodCondition) bool { return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue })
}

type status struct {
	Workers []struct {
		Address struct{ Tcp string }
		State   string
	}
	Jobs []json.RawMessage
}

func (c *cluster) status() (status, error) {
	var s status
	out, err := c.inPod("pecan-dispatcher-0", "pecanctl", "status", "--json", "--dispatcher", "pecan-dispatcher:5050")
	if err != nil {
		return s, fmt.Errorf("%w: %s", err, out)
	}
	return s, json.Unmarshal([]byte(out), &s)
}

// workersAre waits until as many workers are ready and registered, and no more.
func (c *cluster) workersAre(want int) {
	c.t.Helper()
	until(c.t, fmt.Sprint(want, " workers are ready and registered"), func() error {
		s, err := c.status()
		if err != nil {
			return err
		}
		pods := c.podsOf("worker")
		ready := 0
		for _, p := range pods {
			if isReady(p) {
				ready++
			}
		}
		if len(pods) != want || ready != want || len(s.Workers) != want {
			return fmt.Errorf("%d pods, %d ready, %d workers registered", len(pods), ready, len(s.Workers))
		}
		return nil
	})
}

func (c *cluster) scale(want int) (string, error) {
	return c.inPod("pecan-dispatcher-0", "pecanctl", "scale", fmt.Sprint(want), "--provider", "kubernetes:deployment/pecan-worker", "--dispatcher", "pecan-dispatcher:5050", "--wait", "5m")
}

var complete = regexp.MustCompile(`epoch (\d+) is complete`)

// epochs counts the complete epochs of the trainer, and fails if one was wrong or the trainer has ended.
func (c *cluster) epochs() int {
	c.t.Helper()
	text := c.said("trainer", 1<<20)
	if strings.Contains(text, "is wrong") || strings.Contains(text, "Traceback") {
		c.t.Fatalf("the trainer says:\n%s", text[max(0, len(text)-3000):])
	}
	return len(complete.FindAllString(text, -1))
}

// moreEpochs waits until the trainer has completed more epochs: at least one that began now.
func (c *cluster) moreEpochs(when string) {
	c.t.Helper()
	before := c.epochs()
	until(c.t, "the trainer completes two epochs "+when, func() error {
		if now := c.epochs(); now < before+2 {
			return fmt.Errorf("%d of 2 epochs; it says: %s", now-before, c.said("trainer", 300))
		}
		return nil
	})
}

func (c *cluster) startTrainer() {
	c.t.Helper()
	none, grace := int32(0), int64(120)
	job := &batchv1.Job{ObjectMeta: metav1.ObjectMeta{Name: "trainer"}, Spec: batchv1.JobSpec{BackoffLimit: &none, Template: corev1.PodTemplateSpec{
		ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"pecan-client": "true"}},
		Spec: corev1.PodSpec{RestartPolicy: corev1.RestartPolicyNever, TerminationGracePeriodSeconds: &grace, Containers: []corev1.Container{{
			Name: "trainer", Image: "local/pecan-client:0", Command: []string{"python", "/opt/repository/tests/k8s/trainer.py", "pecan-dispatcher.pecan:5050"},
		}}},
	}}}
	_, err := c.client.BatchV1().Jobs(space).Create(c.t.Context(), job, metav1.CreateOptions{})
	check(c.t, err)
}

func TestTheChartRunsAService(t *testing.T) {
	c := start(t, "64")
	ctx := t.Context()
	t.Cleanup(func() {
		if t.Failed() {
			for _, name := range []string{"pecan-dispatcher-0", "trainer"} {
				t.Logf("the log of %s:\n%s", name, c.said(name, 3000))
			}
			for _, p := range c.podsOf("worker") {
				t.Logf("the log of %s:\n%s", p.Name, c.said(p.Name, 800))
			}
		}
	})
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
	evict := func(name string) error {
		return c.client.PolicyV1().Evictions(space).Evict(ctx, &policyv1.Eviction{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: space}})
	}
	until(t, "the budget allows an eviction", func() error {
		err := evict(workers[0].Name)
		if apierrors.IsTooManyRequests(err) {
			return err
		}
		check(t, err)
		return nil
	})
	if err := evict(workers[1].Name); !apierrors.IsTooManyRequests(err) {
		t.Errorf("a second eviction at the same time: %v", err)
	}
	c.moreEpochs("after the eviction")
	c.workersAre(2)
	if slices.ContainsFunc(c.podsOf("worker"), func(p corev1.Pod) bool { return p.UID == workers[0].UID }) {
		t.Errorf("%s is still there", workers[0].Name)
	}

	t.Log("the dispatcher is killed, and then its pod is replaced")
	c.killIn("pecan-dispatcher-0")
	c.moreEpochs("after the death of the dispatcher")
	dispatcher := c.podsOf("dispatcher")[0]
	check(t, c.client.CoreV1().Pods(space).Delete(ctx, "pecan-dispatcher-0", metav1.DeleteOptions{}))
	until(t, "another pod of the dispatcher is ready", func() error {
		pods := c.podsOf("dispatcher")
		if len(pods) != 1 || pods[0].UID == dispatcher.UID || !isReady(pods[0]) {
			return fmt.Errorf("%d pods", len(pods))
		}
		return nil
	})
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
	total := c.epochs()
	trainer, err := c.client.CoreV1().Pods(space).List(ctx, metav1.ListOptions{LabelSelector: "job-name=trainer"})
	check(t, err)
	if len(trainer.Items) != 1 || trainer.Items[0].Status.ContainerStatuses[0].RestartCount != 0 {
		t.Errorf("the trainer was restarted: %+v", trainer.Items)
	}
	background := metav1.DeletePropagationForeground
	check(t, c.client.BatchV1().Jobs(space).Delete(ctx, "trainer", metav1.DeleteOptions{PropagationPolicy: &background}))
	until(t, "the trainer has ended", func() error {
		if !strings.Contains(c.said("trainer", 1000), "the trainer ends") {
			return fmt.Errorf("it says %s", c.said("trainer", 200))
		}
		return nil
	})
	t.Logf("%d epochs, all complete and without repeated elements", total)
	c.helm("uninstall", "pecan", "-n", space, "--wait", "--timeout", "3m")
	until(t, "nothing of the release is left", func() error {
		if left := len(c.podsOf("worker")) + len(c.podsOf("dispatcher")); left > 0 {
			return fmt.Errorf("%d pods", left)
		}
		return nil
	})
	if _, err := c.client.CoreV1().PersistentVolumeClaims(space).Get(ctx, "state-pecan-dispatcher-0", metav1.GetOptions{}); err != nil {
		t.Errorf("the state went with the release: %v", err)
	}
}

// said is what the pods have written whose names begin so.
func (c *cluster) said(pods string, most int) string {
	var text strings.Builder
	files, _ := filepath.Glob(c.log(pods + "*"))
	for _, file := range files {
		text.WriteString(tail(file, most))
	}
	return text.String()
}

// makeVolume makes a volume that a claim without a class gets.
func (c *cluster) makeVolume(name string) {
	c.t.Helper()
	dir := c.path("volume-" + name)
	check(c.t, os.MkdirAll(dir, 0o755))
	volume := &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: corev1.PersistentVolumeSpec{
		Capacity: corev1.ResourceList{"storage": resource.MustParse("20Gi")}, AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
		PersistentVolumeSource: corev1.PersistentVolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: dir}},
	}}
	_, err := c.client.CoreV1().PersistentVolumes().Create(c.t.Context(), volume, metav1.CreateOptions{})
	check(c.t, err)
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
