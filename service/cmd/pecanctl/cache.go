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

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
	"github.com/pecan-ml/pecan/proto/reason"
	"github.com/pecan-ml/pecan/service/cache"
)

// caches runs the commands about caches.
func caches(ctx context.Context, o *options, args []string, out io.Writer) error {
	switch {
	case len(args) == 1 && args[0] == "list":
		return listCaches(ctx, o, out)
	case len(args) != 2:
	case args[0] == "verify":
		return verifyCaches(ctx, o, args[1], out)
	case args[0] == "pin":
		return changeCache(ctx, o, args[1], pecanv1.ChangeCacheRequest_PIN)
	case args[0] == "unpin":
		return changeCache(ctx, o, args[1], pecanv1.ChangeCacheRequest_UNPIN)
	case args[0] == "rm":
		switch info, err := os.Stat(args[1]); {
		case o.oldNames && o.cluster != "":
			return errors.New("cache rm DIR: give --cluster or --old-names, not both")
		case o.oldNames:
			return removeOld(args[1], out)
		case o.cluster != "" || err == nil && info.IsDir() || strings.Contains(args[1], "/"):
			// A key has no slash.
			return removeCluster(ctx, o, args[1], out)
		}
		return changeCache(ctx, o, args[1], pecanv1.ChangeCacheRequest_REMOVE)
	}
	return fmt.Errorf("want cache list, cache verify DIR, cache pin KEY, cache unpin KEY, cache rm KEY, cache rm DIR --cluster ID or cache rm DIR --old-names, got %q (see --help)",
		strings.Join(append([]string{"cache"}, args...), " "))
}

// askCaches calls the dispatcher and explains its errors.
func askCaches(ctx context.Context, o *options, call func(context.Context, pecanv1.DispatcherClient) error) error {
	return ask(ctx, o, func(ctx context.Context, api pecanv1.DispatcherClient) error {
		err := call(ctx, api)
		switch status.Code(err) {
		case codes.OK:
			return nil
		case codes.Unimplemented:
			return fmt.Errorf("caches of dispatcher %s: its version does not list them", o.dispatcher)
		case codes.NotFound, codes.InvalidArgument:
			return fmt.Errorf("dispatcher %s: %s", o.dispatcher, reason.From(err).Message)
		}
		return fmt.Errorf("caches of dispatcher %s: %s; is it running, and is this its address?", o.dispatcher, reason.From(err).Message)
	})
}

func changeCache(ctx context.Context, o *options, key string, change pecanv1.ChangeCacheRequest_Change) error {
	return askCaches(ctx, o, func(ctx context.Context, api pecanv1.DispatcherClient) error {
		_, err := api.ChangeCache(ctx, &pecanv1.ChangeCacheRequest{Key: key, Change: change})
		return err
	})
}

// cachesOf returns what the dispatcher records of caches.
func cachesOf(ctx context.Context, o *options, req *pecanv1.CachesRequest) (answer *pecanv1.CachesResponse, err error) {
	err = askCaches(ctx, o, func(ctx context.Context, api pecanv1.DispatcherClient) (err error) {
		answer, err = api.Caches(ctx, req)
		return err
	})
	return answer, err
}

func listCaches(ctx context.Context, o *options, out io.Writer) error {
	answer, err := cachesOf(ctx, o, &pecanv1.CachesRequest{})
	if err != nil {
		return err
	}
	if o.json {
		value, err := raw(answer)
		if err != nil {
			return err
		}
		return encode(out, value)
	}
	if len(answer.Caches) == 0 {
		fmt.Fprintln(out, "no cache is recorded")
		return nil
	}
	rows := [][]string{{"CACHE", "TENANT", "STATE", "SEGMENTS", "SIZE", "SAVES", "UNUSED", "JOBS"}}
	sum := int64(0)
	for _, c := range answer.Caches {
		sum += c.Bytes
		state, saves, unused := c.State, "-", seconds(c.UnusedS)
		if c.Pinned {
			state += ", pinned"
		}
		if c.SavesS > 0 {
			saves = seconds(c.SavesS)
		}
		if c.InUse {
			unused = "in use"
		}
		rows = append(rows, []string{
			c.Key, orElse(c.Tenant, "-"), state, fmt.Sprintf("%d/%d", c.Segments, c.Streams), size(c.Bytes), saves, unused, orElse(strings.Join(c.Jobs, ", "), "-"),
		})
	}
	table(out, rows)
	bound := "no quota"
	if answer.Quota > 0 {
		bound = "quota " + size(answer.Quota)
	}
	fmt.Fprintf(out, "%d caches, %s, %s\n", len(answer.Caches), size(sum), bound)
	return nil
}

// verifyCaches reads all recorded segments in a directory.
func verifyCaches(ctx context.Context, o *options, path string, out io.Writer) error {
	dir, err := openCaches(path)
	if err != nil {
		return err
	}
	answer, err := cachesOf(ctx, o, &pecanv1.CachesRequest{})
	if err != nil {
		return err
	}
	segments, damaged, bytes := 0, 0, int64(0)
	for _, c := range answer.Caches {
		one, err := cachesOf(ctx, o, &pecanv1.CachesRequest{Key: c.Key, Segments: true})
		if err != nil {
			return err
		}
		for _, s := range one.GetCaches()[0].GetFiles() {
			if ctx.Err() != nil {
				return fmt.Errorf("stopped after %d segments: %w", segments, ctx.Err())
			}
			segments, bytes = segments+1, bytes+s.Bytes
			if err := verifySegment(dir, s); err != nil {
				damaged++
				fmt.Fprintf(out, "cache %s, part %d: %v\n", c.Key, s.Part, err)
			}
		}
	}
	if damaged > 0 {
		return fmt.Errorf("%d of %d segments in %s cannot be used; the next epoch computes their elements and writes them again", damaged, segments, path)
	}
	fmt.Fprintf(out, "%d caches with %d segments (%s) are intact\n", len(answer.Caches), segments, size(bytes))
	return nil
}

// verifySegment reads a segment to its end.
func verifySegment(dir *cache.Dir, s *pecanv1.CacheSegment) error {
	reader, err := dir.Open(cache.Segment{
		Name: s.Name, Bytes: s.Bytes, Checksum: s.Checksum, Elements: s.Elements,
		ID: cache.ID{Key: s.Key, Part: s.Part, Parts: s.Parts, Source: s.Source},
	}, cache.Heap)
	if err != nil {
		return err
	}
	defer reader.Close()
	for {
		if _, err := reader.Next(); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return err
		}
	}
}

// openCaches opens an existing directory of caches. cache.OpenDir alone would make one.
func openCaches(path string) (*cache.Dir, error) {
	_, err := os.Stat(path)
	if err != nil {
		return nil, fmt.Errorf("directory of caches: %w", err)
	}
	dir, err := cache.OpenDir(path, 0)
	if err != nil {
		return nil, fmt.Errorf("directory of caches %s: %w", path, err)
	}
	return dir, nil
}

// removeCluster removes the files that a cluster which is gone has left in a directory of caches.
func removeCluster(ctx context.Context, o *options, path string, out io.Writer) error {
	dir, err := openCaches(path)
	if err != nil {
		return err
	}
	found, old, err := dir.Clusters()
	if err != nil {
		return fmt.Errorf("cache rm %s: %w", path, err)
	}
	files := found[o.cluster]
	switch {
	case o.cluster == "" && old.Files > 0:
		return fmt.Errorf("--cluster or --old-names is missing: %s has files of %s, and %d files (%s) of versions whose names have no cluster", path, clusterList(found), old.Files, size(old.Bytes))
	case o.cluster == "":
		return fmt.Errorf("--cluster is missing: %s has files of %s", path, clusterList(found))
	case files.Files == 0:
		return fmt.Errorf("cache rm: %s has no files of cluster %s, but of %s", path, o.cluster, clusterList(found))
	}
	switch served, err := servedCluster(ctx, o); {
	case err != nil && !o.force:
		return fmt.Errorf("cache rm: cannot ask whether cluster %s is gone: %w; name a dispatcher that answers, or add --force", o.cluster, err)
	case served == o.cluster:
		return fmt.Errorf("cache rm: cluster %s is not gone: dispatcher %s serves it; remove single caches with pecanctl cache rm KEY", o.cluster, o.dispatcher)
	}
	names, err := dir.List(o.cluster)
	for _, name := range names {
		err = errors.Join(err, dir.Remove(name))
	}
	if foreign := files.Files - len(names); err == nil && foreign > 0 {
		err = fmt.Errorf("%d files belong to another user and stay; run the command as that user", foreign)
	}
	if err != nil {
		return fmt.Errorf("cache rm %s: %w", path, err)
	}
	fmt.Fprintf(out, "removed %d files (%s) of cluster %s\n", files.Files, size(files.Bytes), o.cluster)
	return nil
}

// removeOld removes the files of versions whose names have no cluster.
func removeOld(path string, out io.Writer) error {
	dir, err := openCaches(path)
	if err != nil {
		return err
	}
	removed, err := dir.RemoveOld()
	if err != nil {
		return fmt.Errorf("cache rm %s: %w", path, err)
	}
	fmt.Fprintf(out, "removed %d files (%s) with old names\n", removed.Files, size(removed.Bytes))
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

// servedCluster returns the cluster of the dispatcher.
func servedCluster(ctx context.Context, o *options) (cluster string, err error) {
	err = ask(ctx, o, func(ctx context.Context, api pecanv1.DispatcherClient) error {
		status, err := api.Status(ctx, &pecanv1.StatusRequest{})
		cluster = status.GetClusterId()
		return err
	})
	return cluster, err
}
