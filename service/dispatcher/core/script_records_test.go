package core_test

import (
	"fmt"
	"strings"

	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
)

func showRecord(record *pecanv1.Record) string {
	switch k := record.Kind.(type) {
	case *pecanv1.Record_Started:
		return "record started " + k.Started.ClusterId
	case *pecanv1.Record_DatasetAdded:
		return "record dataset added " + k.DatasetAdded.Dataset.DatasetId
	case *pecanv1.Record_DatasetRemoved:
		return "record dataset removed " + k.DatasetRemoved.DatasetId
	case *pecanv1.Record_ClientJoined:
		return "record client joined " + k.ClientJoined.ClientId
	case *pecanv1.Record_ClientLeft:
		return fmt.Sprintf("record client left %s (%s)", k.ClientLeft.ClientId, k.ClientLeft.Why)
	case *pecanv1.Record_JobCreated:
		weaker := ""
		if asked := k.JobCreated.Options.RequestedMode; asked != pecanv1.Mode_MODE_UNSPECIFIED {
			weaker = fmt.Sprintf(" %v instead of %v", k.JobCreated.Options.Mode, asked)
		}
		return fmt.Sprintf("record job created %s name=%s dataset=%s seed=%d%s", k.JobCreated.JobId, k.JobCreated.Name, k.JobCreated.DatasetId, k.JobCreated.Options.Seed, weaker)
	case *pecanv1.Record_JobJoined:
		return fmt.Sprintf("record job joined %s by %s", k.JobJoined.JobId, k.JobJoined.ClientId)
	case *pecanv1.Record_JobLeft:
		return fmt.Sprintf("record job left %s by %s", k.JobLeft.JobId, k.JobLeft.ClientId)
	case *pecanv1.Record_JobFailed:
		return fmt.Sprintf("record job failed %s: %s", k.JobFailed.JobId, k.JobFailed.Error.Message)
	case *pecanv1.Record_JobRemoved:
		return "record job removed " + k.JobRemoved.JobId
	case *pecanv1.Record_EpochOpened:
		line := fmt.Sprintf("record epoch opened %s/%d streams=%d", k.EpochOpened.JobId, k.EpochOpened.Epoch, k.EpochOpened.Streams)
		if at := k.EpochOpened.Position; at != nil {
			line += fmt.Sprintf(" at %v ended %v", at.Next, at.Ended)
		}
		if order := k.EpochOpened.Order; order != nil {
			line += fmt.Sprintf(" order %v", order)
		}
		if streams := k.EpochOpened.OrderStreams; streams != nil {
			line += fmt.Sprintf(" in %v", streams)
		}
		if step := k.EpochOpened.CachedStep; step != "" {
			line += " caching " + step
		}
		return line
	case *pecanv1.Record_EpochJoined:
		line := fmt.Sprintf("record epoch joined %s/%d by %s", k.EpochJoined.JobId, k.EpochJoined.Epoch, k.EpochJoined.ClientId)
		if k.EpochJoined.Prefetch {
			line += " ahead"
		}
		return line
	case *pecanv1.Record_EpochAdopted:
		return fmt.Sprintf("record epoch adopted %s/%d by %s", k.EpochAdopted.JobId, k.EpochAdopted.Epoch, k.EpochAdopted.ClientId)
	case *pecanv1.Record_EpochLeft:
		return fmt.Sprintf("record epoch left %s/%d by %s", k.EpochLeft.JobId, k.EpochLeft.Epoch, k.EpochLeft.ClientId)
	case *pecanv1.Record_EpochFailed:
		return fmt.Sprintf("record epoch failed %s/%d: %s", k.EpochFailed.JobId, k.EpochFailed.Epoch, k.EpochFailed.Error.Message)
	case *pecanv1.Record_EpochClosed:
		return fmt.Sprintf("record epoch closed %s/%d delivered=%v elements=%d", k.EpochClosed.JobId, k.EpochClosed.Epoch, k.EpochClosed.Delivered, k.EpochClosed.Elements)
	}
	return showStreamRecord(record)
}

func showStreamRecord(record *pecanv1.Record) string {
	switch k := record.Kind.(type) {
	case *pecanv1.Record_StreamAdded:
		return "record stream added " + showID(k.StreamAdded.Id)
	case *pecanv1.Record_LeaseGranted:
		restart := ""
		if k.LeaseGranted.Restart {
			restart = ", from its start"
		}
		return fmt.Sprintf("record lease %d granted %s to %s%s", k.LeaseGranted.Lease, showID(k.LeaseGranted.Id), k.LeaseGranted.Worker.WorkerId, restart)
	case *pecanv1.Record_LeaseLost:
		rest := ""
		if k.LeaseLost.Truncated {
			rest = ", and the rest of the stream"
		}
		if k.LeaseLost.OpeningCrashes > 0 {
			rest += fmt.Sprintf(", crash %d of its opening", k.LeaseLost.OpeningCrashes)
		}
		return fmt.Sprintf("record lease %d lost %s %v at %d%s (%s)", k.LeaseLost.Lease, showID(k.LeaseLost.Id), k.LeaseLost.Cause, k.LeaseLost.Progress, rest, k.LeaseLost.Why)
	case *pecanv1.Record_ConsumerAssigned:
		return fmt.Sprintf("record consumer %d of %s is %s from %d", k.ConsumerAssigned.Assignment, showID(k.ConsumerAssigned.Id), k.ConsumerAssigned.ClientId, k.ConsumerAssigned.StartIndex)
	case *pecanv1.Record_ConsumerReleased:
		return fmt.Sprintf("record consumer of %s, %s, gave it up at %d", showID(k.ConsumerReleased.Id), k.ConsumerReleased.ClientId, k.ConsumerReleased.NextIndex)
	case *pecanv1.Record_StreamProduced:
		return fmt.Sprintf("record produced %s count=%d rows=%d", showID(k.StreamProduced.Id), k.StreamProduced.Count, k.StreamProduced.RemainderRows)
	case *pecanv1.Record_StreamDelivered:
		rest := ""
		if k.StreamDelivered.Truncated {
			rest = fmt.Sprintf(", and the rest given up, of %d made", k.StreamDelivered.Produced)
		}
		return fmt.Sprintf("record delivered %s count=%d%s", showID(k.StreamDelivered.Id), k.StreamDelivered.Count, rest)
	case *pecanv1.Record_OrderDecided:
		o := k.OrderDecided.Decided
		return fmt.Sprintf("record order of %s by %v within %v is %v, trial %v, %s (%s)", o.Fingerprint, o.Policy, o.Tolerance, o.Order, o.Trial != nil, showStage(o), o.Why)
	case *pecanv1.Record_OrderJudged:
		o := k.OrderJudged
		line := fmt.Sprintf("record order of %s by %v within %v comes to %v (%s)", o.Fingerprint, o.Policy, o.Tolerance, o.Stage, o.Why)
		if p := o.Production; p != nil {
			line += fmt.Sprintf(" registered %d of %.4g s, ordered %d of %.4g s, beside %v", p.RegisteredElements, p.RegisteredS, p.OrderedElements, p.OrderedS, p.SameEpochs)
		}
		return line
	case *pecanv1.Record_OrderWidened:
		o := k.OrderWidened
		return fmt.Sprintf("record order of %s by %v within %v: %v would take %.4g s instead of %.4g s", o.Fingerprint, o.Policy, o.Tolerance, o.Wider.Tolerance, o.Wider.PredictedAfterS, o.Wider.PredictedBeforeS)
	case *pecanv1.Record_OrderSpread:
		o := k.OrderSpread
		line := fmt.Sprintf("record epoch %s/%d has order %v in %v", o.JobId, o.Epoch, o.Order, o.OrderStreams)
		if o.OrderBelow > 0 {
			line += fmt.Sprintf(" and from %d to below %d", o.OrderFrom, o.OrderBelow)
		}
		return line
	case *pecanv1.Record_ProfileLearned:
		return fmt.Sprintf("record profile of %s: %s", k.ProfileLearned.Profile.Fingerprint, showNodes(k.ProfileLearned.Profile.Nodes))
	case *pecanv1.Record_LearnedMerged:
		return "record merged " + strings.Join(showLearned(k.LearnedMerged.Learned), "; ")
	case *pecanv1.Record_PlacementDecided:
		d := k.PlacementDecided.Placement
		return fmt.Sprintf("record placement of %s: %d remote, %d local, %s (%s)", k.PlacementDecided.JobId, d.Remote, d.Local, d.State, d.Why)
	case *pecanv1.Record_PlacementLearned:
		return fmt.Sprintf("record result for %s: %d remote, %d local", k.PlacementLearned.Known.Fingerprint, k.PlacementLearned.Known.Remote, k.PlacementLearned.Known.Local)
	}
	return showCacheRecord(record)
}
