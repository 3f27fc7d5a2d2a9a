package durable

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"slices"

	"google.golang.org/protobuf/proto"

	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
)

func (s *State) applyCache(record *pecanv1.Record) error {
	switch kind := record.GetKind().(type) {
	case *pecanv1.Record_CacheSegmentAdded:
		return s.applySegmentNamed(kind.CacheSegmentAdded.GetSegment(), kind.CacheSegmentAdded.GetTenant())
	case *pecanv1.Record_CacheCommitted:
		r := kind.CacheCommitted
		cache := s.caches[r.Key]
		if cache == nil || len(cache.Segments) != int(cache.Parts) || Manifest(cache) != r.Manifest {
			return fmt.Errorf("cache %q was committed with another manifest than its segments have", r.Key)
		}
		cache.Manifest = r.Manifest
	case *pecanv1.Record_CacheSegmentDropped:
		r := kind.CacheSegmentDropped
		cache := s.caches[r.Key]
		at, found := FindSegment(cache, max(r.Part, r.Stream))
		if !found || cache.Segments[at].Name != r.Name {
			return fmt.Errorf("segment %q was dropped, which cache %q does not have", r.Name, r.Key)
		}
		s.sizes[r.Key] = s.sizes[r.Key].without(cache.Segments[at])
		cache.Segments = slices.Delete(cache.Segments, at, at+1)
		cache.Manifest = ""
	case *pecanv1.Record_CacheRemoved:
		return s.removeCache(kind.CacheRemoved.Key)
	case *pecanv1.Record_CacheEvicted:
		return s.removeCache(kind.CacheEvicted.Key)
	case *pecanv1.Record_CachePinned:
		cache := s.caches[kind.CachePinned.Key]
		if cache == nil {
			return fmt.Errorf("cache %q does not exist", kind.CachePinned.Key)
		}
		cache.Pinned = kind.CachePinned.Pinned
	case *pecanv1.Record_CacheMeasured:
		r := kind.CacheMeasured
		cache := s.caches[r.Key]
		if cache == nil {
			return fmt.Errorf("cache %q does not exist", r.Key)
		}
		cache.ComputeS, cache.BenefitS, cache.Fingerprint = r.ComputeS, r.BenefitS, r.Fingerprint
	case *pecanv1.Record_CachesUsed:
		s.cachesUsedS = kind.CachesUsed.AtS
		for key, cache := range s.caches {
			if cache.UnusedS += kind.CachesUsed.Seconds; slices.Contains(kind.CachesUsed.Keys, key) {
				cache.UnusedS = 0
			}
		}
	}
	return nil
}

func (s *State) removeCache(key string) error {
	if s.caches[key] == nil {
		return fmt.Errorf("cache %q does not exist", key)
	}
	delete(s.caches, key)
	delete(s.sizes, key)
	return nil
}

// CacheSize is the sum of a cache's segments.
type CacheSize struct {
	Bytes    int64
	Elements uint64
}

func (c CacheSize) with(segment *pecanv1.CacheSegment) CacheSize {
	return CacheSize{c.Bytes + segment.Bytes, c.Elements + segment.Elements}
}

func (c CacheSize) without(segment *pecanv1.CacheSegment) CacheSize {
	return CacheSize{c.Bytes - segment.Bytes, c.Elements - segment.Elements}
}

func (s *State) applySegmentNamed(segment *pecanv1.CacheSegment, tenant string) error {
	cache := s.caches[segment.GetKey()]
	segment = withPart(segment)
	switch {
	case segment.GetKey() == "", segment.Parts == 0, segment.Parts > maxStreams, segment.Part >= segment.Parts:
		return fmt.Errorf("segment %q is of no part of a cache", segment.GetName())
	case cache != nil && cache.Parts != segment.Parts:
		return fmt.Errorf("segment %q is for %d parts, but its cache has %d", segment.Name, segment.Parts, cache.Parts)
	}
	if cache == nil {
		cache = &pecanv1.StoredCache{Key: segment.Key, Parts: segment.Parts, Tenant: tenant}
	}
	at, taken := FindSegment(cache, segment.Part)
	if taken {
		return fmt.Errorf("segment %q is of part %d, which has another segment", segment.Name, segment.Part)
	}
	cache.Segments = slices.Insert(cache.Segments, at, segment)
	s.sizes[segment.Key] = s.sizes[segment.Key].with(segment)
	cache.Sequence = s.applied + 1
	s.caches[segment.Key] = cache
	return nil
}

// Manifest hashes all segments of a cache with their sizes and checksums. A commit names it.
func Manifest(cache *pecanv1.StoredCache) string {
	sum := sha256.New()
	for _, segment := range cache.Segments {
		fmt.Fprintf(sum, "%d %q %d %d %d %q\n", segment.Part, segment.Name, segment.Bytes, segment.Checksum, segment.Elements, segment.Source)
	}
	return hex.EncodeToString(sum.Sum(nil))
}

// FindSegment returns where the segment of a part is in a cache, or where it would be.
func FindSegment(cache *pecanv1.StoredCache, part uint32) (int, bool) {
	return slices.BinarySearchFunc(cache.GetSegments(), part, func(s *pecanv1.CacheSegment, n uint32) int { return cmp.Compare(s.Part, n) })
}

// withPart returns a segment that names its part. Records of earlier versions name a stream.
func withPart(segment *pecanv1.CacheSegment) *pecanv1.CacheSegment {
	if segment.GetParts() > 0 || segment.GetStreams() == 0 {
		return segment
	}
	named := proto.Clone(segment).(*pecanv1.CacheSegment)
	named.Part, named.Parts, named.Stream, named.Streams = segment.Stream, segment.Streams, 0, 0
	return named
}
