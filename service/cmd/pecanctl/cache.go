package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strings"

	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
	"github.com/pecan-ml/pecan/service/cache"
)

// caches runs the commands about caches.
func caches(ctx context.Context, o *options, args []string, out io.Writer) error {
	if len(args) == 2 && args[0] == "rm" {
		return removeCluster(ctx, o, args[1], out)
	}
	return fmt.Errorf("want cache rm DIR --cluster ID, got %q (see --help)", strings.Join(append([]string{"cache"}, args...), " "))
}

// removeCluster removes the files that a cluster which is gone has left in a directory of caches.
func removeCluster(ctx context.Context, o *options, path string, out io.Writer) error {
	// OpenDir would make a directory that does not exist.
	if _, err := os.Stat(path); err != nil {
		return fmt.Errorf("cache rm: %w", err)
	}
	dir, err := cache.OpenDir(path, 0)
	if err != nil {
		return fmt.Errorf("cache rm %s: %w", path, err)
	}
	found, err := dir.Clusters()
	if err != nil {
		return fmt.Errorf("cache rm %s: %w", path, err)
	}
	files := found[o.cluster]
	switch {
	case o.cluster == "":
		return fmt.Errorf("--cluster is missing: %s has files of %s", path, clusterList(found))
	case files.Files == 0:
		return fmt.Errorf("cache rm: %s has no files of cluster %s, but of %s", path, o.cluster, clusterList(found))
	case servedCluster(ctx, o) == o.cluster:
		return fmt.Errorf("cache rm: cluster %s is not gone: dispatcher %s serves it", o.cluster, o.dispatcher)
	}
	names, err := dir.List(o.cluster)
	for _, name := range names {
		err = errors.Join(err, dir.Remove(name))
	}
	if err != nil {
		return fmt.Errorf("cache rm %s: %w", path, err)
	}
	fmt.Fprintf(out, "removed %d files (%s) of cluster %s\n", files.Files, size(files.Bytes), o.cluster)
	return nil
}

// clusterList names the clusters that have files in a directory.
func clusterList(found map[string]cache.Usage) string {
	var list []string
	for _, cluster := range slices.Sorted(maps.Keys(found)) {
		list = append(list, fmt.Sprintf("%s (%d files, %s)", cluster, found[cluster].Files, size(found[cluster].Bytes)))
	}
	return orElse(strings.Join(list, ", "), "no cluster")
}

// servedCluster returns the cluster of the dispatcher; "" if it does not answer.
func servedCluster(ctx context.Context, o *options) (cluster string) {
	_ = ask(ctx, o, func(ctx context.Context, api pecanv1.DispatcherClient) error {
		status, err := api.Status(ctx, &pecanv1.StatusRequest{})
		cluster = status.GetClusterId()
		return err
	})
	return cluster
}
