// Package kubernetes finds workers among the pods of a cluster.
//
// A pod is a worker while it matches a selector, runs, is ready, has an address
// and is not being deleted. Each change has the whole list of workers made anew
// from the pods that are known, so that nothing depends on which event was seen:
// a pod that was relabelled, evicted, replaced or lost in any other way is simply
// not in the next list. The pods come by list and watch, and every
// [Options.Resync] by a new list that starts from nothing, which bounds how long
// an event that was lost or a watch that went silent can matter. While the API
// server cannot be reached the workers stay as they were last known.
//
// It needs the verbs list and watch for pods: in one namespace a Role is enough,
// for all of them a ClusterRole is needed.
//
// The registry runs it as a [registry.Source]. It never calls a worker, changes
// nothing in the cluster, and turns nothing else on.
package kubernetes
