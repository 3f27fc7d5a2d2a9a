package k8s_test

import (
	"context"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

const (
	hostIP  = "10.77.0.1"
	apiPort = "6443"
	token   = "the-administrator-of-the-test"
	// patience bounds each wait. It is long, because a busy machine starts eight workers slowly.
	patience = 4 * time.Minute
)

// plane is a control plane: one process for each of its programs.
type plane struct {
	t          *testing.T
	dir        string
	programs   string
	kubeconfig string
	config     *rest.Config
	client     *kubernetes.Clientset
	api        *exec.Cmd
}

// startPlane starts a control plane that ends with the test.
func startPlane(t *testing.T) *plane {
	t.Helper()
	p := &plane{t: t, programs: programs(t), dir: scratch(t)}
	p.writeKeys()
	p.run("etcd", "etcd", "--data-dir", p.path("etcd"), "--listen-client-urls", "http://127.0.0.1:2379", "--advertise-client-urls", "http://127.0.0.1:2379",
		"--listen-peer-urls", "http://127.0.0.1:2380", "--initial-advertise-peer-urls", "http://127.0.0.1:2380", "--initial-cluster", "default=http://127.0.0.1:2380",
		"--unsafe-no-fsync", "--log-level", "warn")
	p.startAPI()
	p.run("controller-manager", "kube-controller-manager", "--kubeconfig", p.kubeconfig, "--leader-elect=false", "--bind-address", "127.0.0.1",
		"--service-account-private-key-file", p.path("sa.key"), "--root-ca-file", p.path("api/apiserver.crt"), "--pvclaimbinder-sync-period", "1s")
	p.run("scheduler", "kube-scheduler", "--kubeconfig", p.kubeconfig, "--leader-elect=false", "--bind-address", "127.0.0.1")
	return p
}

// programs is the directory of the programs of the control plane.
func programs(t *testing.T) string {
	t.Helper()
	dir := os.Getenv("PECAN_K8S_PROGRAMS")
	if dir == "" {
		t.Skip("run.sh starts these tests")
	}
	return dir
}

// scratch is a directory in memory. It may not lie on the root's file system, over which containers get their own root.
func scratch(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("/tmp", "pecan-k8s")
	check(t, err)
	check(t, syscall.Mount("none", dir, "tmpfs", 0, "mode=755"))
	t.Cleanup(func() {
		_ = syscall.Unmount(dir, syscall.MNT_DETACH)
		_ = os.Remove(dir)
	})
	return dir
}

func (p *plane) path(name string) string { return filepath.Join(p.dir, name) }

// run starts a program of the control plane, which ends with the test. Its output is in a file.
func (p *plane) run(name, program string, args ...string) *exec.Cmd {
	p.t.Helper()
	log, err := os.OpenFile(p.path(name+".log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	check(p.t, err)
	cmd := exec.Command(filepath.Join(p.programs, program), args...)
	cmd.Stdout, cmd.Stderr = log, log
	check(p.t, cmd.Start())
	p.t.Cleanup(func() {
		if cmd.ProcessState == nil {
			_ = cmd.Process.Kill()
			_ = cmd.Wait()
		}
		if p.t.Failed() {
			p.t.Logf("the end of %s:\n%s", name, tail(p.path(name+".log"), 3000))
		}
		log.Close()
	})
	return cmd
}

// startAPI starts the API server, also again after stopAPI, and waits until it serves.
func (p *plane) startAPI() {
	p.t.Helper()
	p.api = p.run("apiserver", "kube-apiserver", "--etcd-servers", "http://127.0.0.1:2379", "--bind-address", hostIP, "--advertise-address", hostIP,
		"--secure-port", apiPort, "--cert-dir", p.path("api"), "--service-cluster-ip-range", "10.96.0.0/16", "--token-auth-file", p.path("tokens"),
		"--authorization-mode", "RBAC", "--service-account-issuer", "https://kubernetes.default.svc", "--service-account-key-file", p.path("sa.pub"),
		"--service-account-signing-key-file", p.path("sa.key"), "--allow-privileged")
	until(p.t, "the API server serves", func() error {
		if err := p.connect(); err != nil {
			return err
		}
		var code int
		err := p.client.Discovery().RESTClient().Get().AbsPath("/readyz").Do(context.Background()).StatusCode(&code).Error()
		if err == nil && code != http.StatusOK {
			return fmt.Errorf("status %d", code)
		}
		return err
	})
}

// stopAPI ends the API server and returns when it has ended.
func (p *plane) stopAPI() {
	p.t.Helper()
	check(p.t, p.api.Process.Kill())
	_ = p.api.Wait()
}

// connect writes the kubeconfig of the administrator. The API server has made its certificate by then.
func (p *plane) connect() error {
	if p.client != nil {
		return nil
	}
	ca, err := os.ReadFile(p.path("api/apiserver.crt"))
	if err != nil {
		return err
	}
	file := clientcmdapi.NewConfig()
	file.Clusters["test"] = &clientcmdapi.Cluster{Server: "https://" + hostIP + ":" + apiPort, CertificateAuthorityData: ca}
	file.AuthInfos["admin"] = &clientcmdapi.AuthInfo{Token: token}
	file.Contexts["test"] = &clientcmdapi.Context{Cluster: "test", AuthInfo: "admin"}
	file.CurrentContext = "test"
	p.kubeconfig = p.path("kubeconfig")
	if err := clientcmd.WriteToFile(*file, p.kubeconfig); err != nil {
		return err
	}
	if p.config, err = clientcmd.BuildConfigFromFlags("", p.kubeconfig); err != nil {
		return err
	}
	p.config.QPS, p.config.Burst, p.config.Timeout = 200, 400, 10*time.Second
	p.client, err = kubernetes.NewForConfig(p.config)
	return err
}

func (p *plane) writeKeys() {
	p.t.Helper()
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	check(p.t, err)
	public, err := x509.MarshalPKIXPublicKey(&key.PublicKey)
	check(p.t, err)
	check(p.t, os.WriteFile(p.path("sa.key"), pem.EncodeToMemory(&pem.Block{Type: "RSA PRIVATE KEY", Bytes: x509.MarshalPKCS1PrivateKey(key)}), 0o600))
	check(p.t, os.WriteFile(p.path("sa.pub"), pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: public}), 0o644))
	check(p.t, os.WriteFile(p.path("tokens"), []byte(token+",admin,admin,system:masters\n"), 0o600))
}

func check(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// until repeats a check until it succeeds.
func until(t *testing.T, what string, try func() error) {
	t.Helper()
	started := time.Now()
	for {
		err := try()
		if err == nil {
			t.Logf("%s after %.1f s", what, time.Since(started).Seconds())
			return
		}
		if time.Since(started) > patience {
			t.Fatalf("%s: not after %s: %v", what, patience, err)
		}
		time.Sleep(250 * time.Millisecond)
	}
}

func tail(name string, most int) string {
	text, _ := os.ReadFile(name)
	return string(text[max(0, len(text)-most):])
}
