package pulsartxnspark.broker;

import pulsartxnspark.store.OnCluster;

@OnCluster
class PendingAckReplayOnClusterTest extends PendingAckReplayTest {}
