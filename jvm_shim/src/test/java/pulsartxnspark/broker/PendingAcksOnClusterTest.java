package pulsartxnspark.broker;

import pulsartxnspark.store.OnCluster;

@OnCluster
class PendingAcksOnClusterTest extends PendingAcksTest {}
