//go:build !mutant_repeat

package core

import pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"

// answered finds the answer to an earlier copy of a request; nil for the first copy.
func answered(known []*pecanv1.StoredRequest, req *pecanv1.OpenEpochRequest) *pecanv1.StoredRequest {
	for _, request := range known {
		if request.RequestId == req.RequestId && request.Opened && request.JobId == req.JobId {
			return request
		}
	}
	return nil
}
