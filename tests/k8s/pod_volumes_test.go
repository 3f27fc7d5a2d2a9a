package k8s_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	authenticationv1 "k8s.io/api/authentication/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// volume returns the directory of a volume.
func (k *kubelet) volume(ctx context.Context, r *podRun, name string) (string, error) {
	var group int64
	if s := r.pod.Spec.SecurityContext; s != nil && s.FSGroup != nil {
		group = *s.FSGroup
	}
	dir := k.dir(r, "volume-"+name)
	for _, v := range r.pod.Spec.Volumes {
		if v.Name != name {
			continue
		}
		switch {
		case v.EmptyDir != nil:
			return dir, shared(dir, group)
		case v.PersistentVolumeClaim != nil:
			claim, err := k.plane.client.CoreV1().PersistentVolumeClaims(r.pod.Namespace).Get(ctx, v.PersistentVolumeClaim.ClaimName, metav1.GetOptions{})
			if err != nil {
				return "", err
			}
			volume, err := k.plane.client.CoreV1().PersistentVolumes().Get(ctx, claim.Spec.VolumeName, metav1.GetOptions{})
			if err != nil {
				return "", err
			}
			return volume.Spec.HostPath.Path, shared(volume.Spec.HostPath.Path, group)
		case v.HostPath != nil:
			return v.HostPath.Path, nil
		case v.ConfigMap != nil:
			config, err := k.plane.client.CoreV1().ConfigMaps(r.pod.Namespace).Get(ctx, v.ConfigMap.Name, metav1.GetOptions{})
			if err != nil {
				return "", err
			}
			return dir, writeFiles(dir, config.Data)
		case v.Projected != nil:
			return dir, k.writeToken(ctx, r, dir)
		}
	}
	return "", fmt.Errorf("the volume %s is of a kind that this kubelet does not have", name)
}

// shared makes a directory that the group of the pod may write to.
func shared(dir string, group int64) error {
	if err := os.MkdirAll(dir, 0o777); err != nil {
		return err
	}
	if err := os.Chown(dir, 0, int(group)); err != nil {
		return err
	}
	return os.Chmod(dir, 0o2777)
}

// writeToken writes the credentials of the pod's service account.
func (k *kubelet) writeToken(ctx context.Context, r *podRun, dir string) error {
	account := r.pod.Spec.ServiceAccountName
	request := &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{BoundObjectRef: &authenticationv1.BoundObjectReference{Kind: "Pod", APIVersion: "v1", Name: r.pod.Name, UID: r.pod.UID}}}
	answer, err := k.plane.client.CoreV1().ServiceAccounts(r.pod.Namespace).CreateToken(ctx, account, request, metav1.CreateOptions{})
	if err != nil {
		return err
	}
	ca, err := os.ReadFile(k.plane.path("api/apiserver.crt"))
	if err != nil {
		return err
	}
	return writeFiles(dir, map[string]string{"token": answer.Status.Token, "ca.crt": string(ca), "namespace": r.pod.Namespace})
}

// writeFiles writes the files of a volume.
func writeFiles(dir string, files map[string]string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	for name, content := range files {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o644); err != nil {
			return err
		}
	}
	return nil
}
