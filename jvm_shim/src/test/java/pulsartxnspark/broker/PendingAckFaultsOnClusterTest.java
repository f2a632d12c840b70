package pulsartxnspark.broker;

import pulsartxnspark.store.OnCluster;

@OnCluster
class PendingAckFaultsOnClusterTest extends PendingAckFaultsTest {}
