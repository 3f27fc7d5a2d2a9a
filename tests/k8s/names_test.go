package k8s_test

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// serveNames writes the names of all services and the addresses of their pods into a hosts file, which the containers
// have as /etc/hosts. The file stays as it is while the API server is absent.
func serveNames(ctx context.Context, p *plane, file string) {
	written := ""
	for ctx.Err() == nil {
		if text, err := names(ctx, p); err == nil && text != written {
			// The containers have mounted this inode.
			if os.WriteFile(file, []byte(text), 0o644) == nil {
				written = text
			}
		}
		time.Sleep(200 * time.Millisecond)
	}
}

func names(ctx context.Context, p *plane) (string, error) {
	list, err := p.client.DiscoveryV1().EndpointSlices("").List(ctx, metav1.ListOptions{})
	if err != nil {
		return "", err
	}
	lines := []string{"127.0.0.1 localhost"}
	for _, slice := range list.Items {
		name, space := slice.Labels["kubernetes.io/service-name"], slice.Namespace
		for _, e := range slice.Endpoints {
			if e.Conditions.Ready != nil && !*e.Conditions.Ready {
				continue
			}
			for _, address := range e.Addresses {
				lines = append(lines, fmt.Sprintf("%s %s %s.%s %s.%s.svc.cluster.local", address, name, name, space, name, space))
			}
		}
	}
	slices.Sort(lines)
	return strings.Join(lines, "\n") + "\n", nil
}
