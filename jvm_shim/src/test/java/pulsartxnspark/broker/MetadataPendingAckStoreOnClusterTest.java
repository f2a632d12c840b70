package pulsartxnspark.broker;

import pulsartxnspark.store.OnCluster;

@OnCluster
class MetadataPendingAckStoreOnClusterTest extends MetadataPendingAckStoreTest {}
