//go:build mutant_repeat

package core

import pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"

// answered treats every copy of a request as a new one. tests/sim must notice.
func answered([]*pecanv1.StoredRequest, *pecanv1.OpenEpochRequest) *pecanv1.StoredRequest { return nil }
